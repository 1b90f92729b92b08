"""What is written in triggers.yaml and triggers.ini, and what is told about what is wrong there."""

from __future__ import annotations

import textwrap
from pathlib import Path

import msgspec
import pytest

from encamp.core.kinds import schema_of
from encamp.core.triggers import check
from encamp.describe.trigger_files import read_triggers
from encamp.model.errors import Code, EncampError
from tests.core.triggers.small_site import COMMANDS, PROPERTIES, SmallSite, parse, source

PERUGIA = """\
[client_query]
expr = { len(manager.clients) != 0 }
cmd = { sender.send_get_property() }
ticks = 30
on_update_check = no
"""


def mistakes(text: str, name: str = "triggers.yaml") -> list[str]:
    with pytest.raises(EncampError) as caught:
        parse(textwrap.dedent(text).lstrip("\n"), name)
    assert caught.value.code is Code.CONFIGURATION
    return caught.value.detail.splitlines()


def test_everything_a_trigger_can_say() -> None:
    (definition,) = parse(
        """
too_hot:
  when: host.load1 > 2 * host.cpus
  do:
    - send(host, 'machine.pause', machine='b3')
    - "log(f'{host.name} is hot: {host.load1:.1f}')"
  hold: 30s
  cooldown: 5m
  every: 1m
  ticks: 30
  on_update_check: yes
  ignore_errors: no
  repeats: 7
  enabled: true
  help: Hot hosts rest.
"""
    )
    assert definition.name == "too_hot"
    assert definition.when.text == "host.load1 > 2 * host.cpus"
    assert len(definition.do) == 2
    assert (definition.hold, definition.cooldown, definition.every) == (30.0, 300.0, 60.0)
    assert (definition.ticks, definition.on_update_check) == (30.0, True)
    assert definition.once is None
    assert definition.repeats == 7
    assert definition.line == 2


def test_the_first_system_s_example_loads_as_it_is() -> None:
    (definition,) = parse(PERUGIA, "triggers.ini")
    assert definition.name == "client_query"
    assert definition.when.text == "len(manager.clients) != 0"
    assert definition.do[0].text == "sender.send_get_property()"
    assert definition.ticks == 30.0
    assert definition.on_update_check is False


def test_the_document_shows_that_example() -> None:
    document = Path(__file__).parents[3] / "docs" / "triggers.md"
    assert f"```ini\n{PERUGIA}```" in document.read_text()


def test_expr_and_cmd_are_other_words_for_when_and_do() -> None:
    (definition,) = parse("a: {expr: len(hosts) > 3, cmd: log('x')}")
    assert definition.when.text == "len(hosts) > 3"
    assert mistakes("a: {expr: len(hosts) > 3, when: len(hosts) > 3, do: log('x')}") == [
        "triggers.yaml:1:5: 'expr' and 'when' are the same: leave one of them out"
    ]


def test_all_mistakes_of_all_triggers_are_told_at_once() -> None:
    found = mistakes(
        """
        a:
          when: host.lod1 > 3
          do: log('x')
        b:
          when: host.load1 > 'x'
          do: send(host, 'machine.puase', machine='x')
          hld: 3s
        c:
          when: len(hosts) > 0
          hold: soon
          do: shout('x')
        d:
          do: log('x')
        """
    )
    places = [":".join(line.split(":")[:3]) for line in found]
    assert places == [
        "triggers.yaml:2:9",
        "triggers.yaml:7:3",
        "triggers.yaml:10:9",
        "triggers.yaml:12:1",
    ]
    assert "load1" in found[0]
    assert "did you mean 'hold'?" in found[1]


def test_mistakes_in_expressions_have_their_place_and_a_suggestion() -> None:
    found = mistakes(
        """
        a:
          when: host.load1 > 3 and host.memry_free > 1
          do:
            - send(host, 'machine.puase', machine='x')
            - send(host, 'machine.pause', machin='x')
            - shout('x')
        """
    )
    places = [":".join(line.split(":")[1:3]) for line in found]
    assert places[0].startswith("2:"), found
    assert "memory_free" in found[0]
    assert [place.split(":")[0] for place in places] == ["2", "4", "5", "6"] or len(found) > 4
    text = "\n".join(found)
    assert "machine.pause" in text


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("when: host.lod1 > 3", (2, 9)),
        ("when: 'host.lod1 > 3'", (2, 10)),
        ('when: "host.lod1 > 3"', (2, 10)),
        ("when: |\n    host.lod1 > 3", (3, 5)),
        ("when: |\n    host.load1 > 3\n    and host.lod1 > 3", (4, 9)),
        ("when: >-  # folded\n    host.load1 > 3\n    and host.lod1 > 3", (4, 9)),
        ("when: host.load1 > 3\n    and host.lod1 > 3", (3, 9)),
        ("when: 'host.kernel == ''6.1''\n    and host.lod1 > 3'", (3, 9)),
        ('when: "host.kernel == \\"6.1\\" and host.lod1 > 3"', (2, 37)),
    ],
)
def test_places_are_those_of_the_file_however_it_is_written(
    written: str, place: tuple[int, int]
) -> None:
    found = mistakes(f"a:\n  {written}\n  do: log('x')\n")
    line, column = (int(part) for part in found[0].split(":")[1:3])
    assert line == place[0], found
    assert place[1] <= column <= place[1] + len("host."), found


def test_places_in_ini_files() -> None:
    found = mistakes(
        """
        [a]
        expr = {
          host.load1 > 3
          and host.lod1 > 3
          }
        cmd = { log('x') }
        """,
        "triggers.ini",
    )
    assert found[0].startswith(("triggers.ini:4:7:", "triggers.ini:4:12:")), found


def test_yaml_that_swallowed_a_part_of_the_text_is_explained() -> None:
    for text in (
        "a:\n  when: {len(hosts) > 3}\n  do: log('x')\n",
        "a:\n  when: len(hosts) > 3\n  do: log('there: they are')\n",
        "a:\n  when: len(hosts) > 3\n  do:\n    - log('there'): x\n",
    ):
        assert "must be in quotes" in mistakes(text)[0]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("webhook('ftp://example.org', 'x')", "URL"),
        ("webhook('https://', 'x')", "URL"),
        ("mail('nobody at all', 'x', 'y')", "address"),
        ("query(hosts, 'lod1')", "load1"),
        ("sender.send_get_property(['lod1'])", "load1"),
        ("start(host, environmnt='mini')", "environment"),
        ("send('node1', 'nothing.at_all')", "nothing.at_all"),
        ("place('mini', count=0)", "must be 1 at least"),
        ("stop_idle('mini', keep=-1)", "must be 0 at least"),
    ],
)
def test_what_is_written_down_in_calls_is_checked(call: str, expected: str) -> None:
    text = "\n".join(mistakes(f'a:\n  when: host.load1 > 3\n  do: "{call}"\n'))
    assert expected in text, text


@pytest.mark.parametrize("call", ["place('minni')", "start(host, 'minni')", "stop_idle('minni')"])
def test_environments_are_those_of_the_site(call: str) -> None:
    site = SmallSite()
    text = f'a:\n  when: host.load1 > 3\n  do: "{call}"\n'
    # As long as none is known, nobody can say.
    site.load(text)
    site.world.put("environment", "mini", {"name": "mini"})
    with pytest.raises(EncampError) as refused:
        site.load(text)
    assert "triggers.yaml:3:" in refused.value.detail
    assert "there is no environment 'minni'; did you mean 'mini'?" in refused.value.detail
    site.load(text.replace("minni", "mini"))


@pytest.mark.parametrize(
    "options",
    [
        "when: len(hosts) > 3\n  once: yes\n  every: 3s",
        "when: changed(host.load1)\n  hold: 3s",
        "when: changed(host.load1)\n  every: 3s",
        "when: changed(host.load1)\n  on_update_check: no",
    ],
)
def test_times_that_contradict_each_other_are_refused(options: str) -> None:
    assert mistakes(f"a:\n  {options}\n  do: log('x')\n")[0].startswith("triggers.yaml:1:1: ")


def test_two_files_may_not_define_the_same_name() -> None:
    files = [
        (source("triggers.yaml"), b"client_query: {when: len(hosts) > 3, do: log('x')}"),
        (source("triggers.ini"), PERUGIA.encode()),
    ]
    with pytest.raises(EncampError, match="mistake") as caught:
        read_triggers(files, schema_of(PROPERTIES), COMMANDS)
    assert "client_query" in caught.value.detail


@pytest.mark.parametrize("name", ["ticks", "every", "hold", "cooldown"])
def test_times_too_short_to_do_anything_else_are_refused(name: str) -> None:
    for written in ("0.000000001", "0.05s"):
        (found,) = mistakes(f"a:\n  when: len(hosts) > 3\n  do: log('x')\n  {name}: {written}\n")
        assert found.startswith(f"triggers.yaml:4:{len(name) + 5}: 0.1 seconds are the least")
    (definition,) = parse(f"a: {{when: len(hosts) > 3, do: log('x'), {name}: 0.1}}")
    (wrong,) = check(
        [msgspec.structs.replace(definition, **{name: 1e-9})], schema_of(PROPERTIES), COMMANDS
    )
    assert f"'{name}' is less than 0.1 seconds" in wrong.sentence


def test_one_trigger_may_say_the_same_as_another() -> None:
    for attributes in (
        "when: len(hosts) > 3\n  do: log('x')",
        "expr: len(hosts) > 3\n  cmd: log('x')",
    ):
        first, second = parse(f"a: &same\n  {attributes}\nb: *same\n")
        assert (first.when.text, first.do[0].text) == (second.when.text, second.do[0].text)
        assert (first.name, second.name) == ("a", "b")


def test_names_that_are_almost_right_are_explained() -> None:
    assert mistakes("a: {When: len(hosts) > 3, do: log('x')}") == [
        "triggers.yaml:1:5: there is no attribute 'When' in a trigger; did you mean 'when'?"
    ]
    merged = mistakes("a: &x {when: len(hosts) > 3, do: log('x')}\nb: {<<: *x, ticks: 5}")
    assert any("write out what the trigger shall say" in line for line in merged)


def test_yes_and_no_as_they_are_written() -> None:
    for written, expected in (("1", True), ("0", False), ("Yes", True), ("off", False)):
        (definition,) = parse(PERUGIA.replace("= no", f"= {written}"), "triggers.ini")
        assert definition.on_update_check is expected
    quoted = mistakes("a: {when: len(hosts) > 3, do: log('x'), once: 'yes'}")
    assert "leave the quotes out" in quoted[0]
    assert "leave the quotes out" in mistakes(PERUGIA.replace("= no", '= "no"'), "triggers.ini")[0]


def test_what_yaml_takes_for_a_comment_is_explained() -> None:
    found = mistakes("a:\n  when: len(hosts) > 3\n  do: log('number #b')\n  hold: 3s\n")
    assert "' #'" in found[0], found


def test_braces_may_hold_lines_that_are_not_indented() -> None:
    (definition,) = parse(
        "[a]\nexpr = {\nlen(hosts) != 0\nand len(machines) == 3\n}\ncmd = { log('x') }\n",
        "triggers.ini",
    )
    assert definition.when.text == "len(hosts) != 0\nand len(machines) == 3"


def test_a_brace_that_is_not_closed_swallows_nothing_else() -> None:
    found = mistakes("[a]\nexpr = {\nlen(hosts) != 0\ncmd = { log('x') }\n", "triggers.ini")
    assert any(line.startswith("triggers.ini:2:8: this brace is not closed") for line in found)
    assert not any("attribute" in line for line in found)
    found = mistakes("[a]\nexpr = { len(hosts) != 0 } # any\ncmd = log('x')\n", "triggers.ini")
    assert any("a comment needs a line of its own" in line for line in found)
