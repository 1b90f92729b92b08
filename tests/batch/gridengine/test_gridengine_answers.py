"""What Grid Engine's commands print is understood, also where it is odd."""

from __future__ import annotations

import pytest

from encamp.batch.gridengine.answers import Detail, amount, read_detail, read_values
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB

JOB = """<?xml version='1.0'?>
<detailed_job_info><djob_info><element>
  <JB_owner>alice</JB_owner>
  <JB_job_args><element><ST_name>%lt;a:b&gt; \x01</ST_name></element></JB_job_args>
  <JB_ja_tasks>
    <JATASK:      53.>
      <JAT_status>128</JAT_status>
    </JATASK:      53.>
  </JB_ja_tasks>
  <JB_context><context_list>
    <VA_variable>encamp_restarts</VA_variable><VA_value>2</VA_value>
  </context_list></JB_context>
  <JB_restart>2</JB_restart>
  <JB_execution_time>1794967252</JB_execution_time>
</element></djob_info></detailed_job_info>
"""


def test_answer_of_a_master_that_was_restarted_is_understood() -> None:
    """It calls the tasks of jobs by a name that XML does not have."""
    assert read_detail(f"a complaint\n{JOB}") == Detail(
        owner="alice",
        requests={},
        context={"encamp_restarts": "2"},
        rerun=False,
        not_before=1794967252.0,
        errors=(),
        messages=(),
    )


def test_master_that_is_away_is_not_taken_for_one_that_knows_no_such_job() -> None:
    """Both are answers of `qstat -xml -j`, and its exit code is 0."""
    unknown = "<?xml version='1.0'?>\n<unknown_jobs >\n<ST_name>99</ST_name>\n</unknown_jobs>\n"
    assert read_detail(unknown) is None
    away = "<AN_status>11</AN_status><AN_text>unable to send message to qmaster</AN_text>"
    with pytest.raises(EncampError, match="unable to send message") as raised:
        read_detail(f"<?xml version='1.0'?><comunication_error >{away}</comunication_error>")
    assert (raised.value.code, raised.value.transient) == (Code.UNREACHABLE, True)


def test_what_cannot_be_understood_is_told() -> None:
    with pytest.raises(EncampError) as raised:
        read_detail("<?xml version='1.0'?><a><b></a>")
    assert raised.value.code is Code.PROTOCOL


@pytest.mark.parametrize(
    ("text", "bytes"),
    [("300M", 300 * MIB), ("2k", 2000), ("1.5K", 1536), ("17", 17), ("INFINITY", None), ("", None)],
)
def test_amounts(text: str, bytes: int | None) -> None:
    assert amount(text) == bytes


def test_values_that_go_on_over_lines_and_several_objects() -> None:
    shown = "qname a.q\nslots 1,[node1=2], \\\n      [node2=3]\n\nqname b.q\nslots 4\n"
    assert list(read_values(shown)) == [
        {"qname": "a.q", "slots": "1,[node1=2],       [node2=3]"},
        {"qname": "b.q", "slots": "4"},
    ]
