"""Files of parameters: where one is set, and the file with nothing else changed."""

from __future__ import annotations

import pytest

from encamp.batch.install.lines import Setting, appended, replaced, setting

FILES = {
    "/etc/slurm/slurm.conf": b"""# JobSubmitPlugins=commented
ClusterName=x
jobsubmitplugins = partition,throttle  # why
Include more.conf
NodeName=n1 CPUs=2 \\
   RealMemory=100
""",
    "/etc/slurm/more.conf": b"MailProg=/bin/true\nInclude /elsewhere/last.conf\n",
    "/elsewhere/last.conf": b"TaskPlugin=task/none\n",
}


def test_setting_is_found_however_it_is_written() -> None:
    assert setting("/etc/slurm/slurm.conf", "JobSubmitPlugins", FILES.get) == Setting(
        "/etc/slurm/slurm.conf",
        "jobsubmitplugins = partition,throttle  # why",
        "partition,throttle",
        len("jobsubmitplugins = partition,throttle"),
    )


@pytest.mark.parametrize(
    ("line", "value", "before"),
    [
        ("X=a,b#c", "a,b", "X=a,b"),
        ('  x = "a b"  # c', "a b", '  x = "a b'),
        ('X=""', "", 'X="'),
        ("X=a,\\\nb # c", "a,b", "X=a,\\\nb"),
        ("X= \\ # c\n  a", "a", "X= \\ # c\n  a"),
        ("X+=a", "a", "X+=a"),
        ("X=a Y=b", "a", "X=a"),
    ],
)
def test_a_value_ends_where_it_does_for_slurm(line: str, value: str, before: str) -> None:
    found = setting("/x", "X", {"/x": f"A=1\n{line}\nB=2\n".encode()}.get)
    assert found == Setting("/x", line, value, len(before))


def test_a_comment_is_not_continued() -> None:
    data = b"# x \\\nX=a\n"
    assert setting("/x", "X", {"/x": data}.get) == Setting("/x", "X=a", "a", 3)
    assert replaced(data, "X=a", "X=b") == b"# x \\\nX=b\n"


def test_setting_is_found_in_the_file_that_is_included() -> None:
    found = setting("/etc/slurm/slurm.conf", "TaskPlugin", FILES.get)
    assert found == Setting("/elsewhere/last.conf", "TaskPlugin=task/none", "task/none", 20)


def test_what_is_only_in_a_comment_is_not_set() -> None:
    assert setting("/x", "A", {"/x": b"#A=1\n # A=2\nAB=3\n"}.get) is None


def test_files_that_include_one_another_are_read_to_an_end() -> None:
    files = {"/a": b"Include /b\n", "/b": b"Include /a\nX=1\n"}
    assert setting("/a", "X", files.get) == Setting("/b", "X=1", "1", 3)


def test_the_last_of_several_counts_and_is_replaced() -> None:
    data = b"X=1\nY=2\nX=1\n"
    assert setting("/x", "X", {"/x": b"X=1\nX=2\n"}.get) == Setting("/x", "X=2", "2", 3)
    assert replaced(data, "X=1", "X=3") == b"X=1\nY=2\nX=3\n"


def test_only_the_line_is_replaced_and_its_end_stays() -> None:
    assert replaced(b"A=1\r\nB=2\r\n", "A=1", "A=3") == b"A=3\r\nB=2\r\n"
    assert replaced(b"A=1", "A=1", "A=3") == b"A=3"
    assert replaced(b"\xff\nA=1\n", "A=1", "") == b"\xff\n"
    assert replaced(b"A=1\n", "A=2", "") is None


def test_a_continued_line_is_one() -> None:
    data = FILES["/etc/slurm/slurm.conf"]
    line = "NodeName=n1 CPUs=2 \\\n   RealMemory=100"
    assert replaced(data, line, "NodeName=n2") == data[: data.index(b"NodeName")] + b"NodeName=n2\n"


def test_a_line_is_added_at_the_end() -> None:
    assert appended(None, "X=1") == b"X=1\n"
    assert appended(b"A=1", "X=1") == b"A=1\nX=1\n"
    assert appended(b"A=1\n", "X=1") == b"A=1\nX=1\n"
