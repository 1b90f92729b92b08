"""Definitions of properties: what they may say, what becomes of the shipped ones, and mistakes."""

from __future__ import annotations

from textwrap import dedent

import pytest

from encamp.describe.property_files import (
    load_properties,
    property_stamps,
    read_properties,
    shipped_properties,
)
from encamp.describe.sources import Level, Source
from encamp.model.errors import Code, EncampError
from encamp.model.property import PropertyDefinition, ValueKind
from tests.describe.conftest import Host, root_only

PLUGINS = ("memory", "ram", "program", "cpu")
SHIPPED = {definition.name: definition for definition in shipped_properties()}


def read(text: str, name: str = "properties.yaml") -> dict[str, PropertyDefinition]:
    source = Source(name, Level.SITE, 0, "/")
    found = read_properties([(source, dedent(text).encode())], PLUGINS)
    return {definition.name: definition for definition in found}


def mistakes(text: str, name: str = "properties.yaml") -> list[str]:
    with pytest.raises(EncampError) as caught:
        read(text, name)
    assert caught.value.code is Code.CONFIGURATION
    return caught.value.detail.splitlines()


def test_perugias_example_loads_as_it_was_printed() -> None:
    text = """\
    [ram_free]
    command = ram
    parameters = MemFree
    return_type = int
    ticks = 60
    """
    assert read(text, "properties.ini")["ram_free"] == PropertyDefinition(
        name="ram_free",
        command="ram",
        parameters=("MemFree",),
        return_type=ValueKind.INT,
        ticks=60.0,
    )


def test_both_ways_of_writing_say_the_same() -> None:
    yaml = """
    jobs:
      command: program
      parameters: [squeue, --noheader, "two words"]
      return_type: int
      ticks: 5m
      timeout: 30
      tolerance: 2K
      unit: jobs
      help: those that wait
    """
    ini = """
    # of the batch system
    [jobs]
    command: program
    parameters = squeue --noheader
        'two words'
    return_type = int
    ticks = 5m
    timeout = 30
    tolerance = 2K
    unit = jobs
    help = those that wait
    """
    one, other = read(yaml)["jobs"], read(dedent(ini), "properties.ini")["jobs"]
    assert one == other
    assert one.parameters == ("squeue", "--noheader", "two words")
    assert (one.ticks, one.timeout, one.tolerance) == (300.0, 30.0, 2048.0)


def test_text_of_parameters_is_split_into_words_and_a_list_is_not() -> None:
    found = read(
        """
        text: {command: program, parameters: "printf '%s' ${HOME} *"}
        list: {command: program, parameters: ["printf '%s'", "${HOME}"]}
        """
    )
    assert found["text"].parameters == ("printf", "%s", "${HOME}", "*")
    assert found["list"].parameters == ("printf '%s'", "${HOME}")


def test_shipped_properties_are_there_without_any_file() -> None:
    assert read("") == SHIPPED
    assert {"memory_total", "memory_free", "cpus", "load1", "disk_free", "machines"} <= set(SHIPPED)
    assert all(definition.help for definition in SHIPPED.values())


def test_site_changes_a_shipped_property_and_keeps_the_rest_of_it() -> None:
    found = read("load1: {ticks: 1s, tolerance: 0}")["load1"]
    assert (found.ticks, found.tolerance) == (1.0, 0.0)
    assert (found.command, found.help) == (SHIPPED["load1"].command, SHIPPED["load1"].help)


def test_site_that_names_a_command_defines_a_shipped_property_anew() -> None:
    found = read("load1: {command: program, parameters: /opt/load}")["load1"]
    assert found == PropertyDefinition(name="load1", command="program", parameters=("/opt/load",))


@pytest.mark.parametrize(
    ("text", "name"), [("load1: {ticks: off}", "x.yaml"), ("[load1]\nticks = off\n", "x.ini")]
)
def test_site_turns_a_shipped_property_off(text: str, name: str) -> None:
    assert set(SHIPPED) - set(read(text, name)) == {"load1"}


def test_ticks_of_nought_mean_only_when_asked() -> None:
    assert read("load1: {ticks: 0}")["load1"].ticks == 0.0


@pytest.mark.parametrize(
    ("text", "place", "mistake"),
    [
        ("x:\n  comand: ram", "2:3", "there is no attribute 'comand' in a property; did you mean"),
        ("x:\n  command: mem", "2:12", "one of cpu, memory, program, ram is expected here"),
        ("x:\n  command: memori", "2:12", "not 'memori'; did you mean 'memory'?"),
        ("x:\n  ticks: 5", "1:1", "'x' needs a 'command', as it is not shipped"),
        ("load_1:\n  ticks: 5", "1:1", "as it is not shipped; did you mean 'load1'?"),
        ("x: {command: ram, return_type: integer}", "1:32", "did you mean 'int'?"),
        ("x: {command: ram, ticks: often}", "1:26", "seconds from one reading to the next"),
        ("x: {command: ram, ticks: 0.01}", "1:26", "(at least 0.1)"),
        ("x: {command: ram, timeout: 2h}", "1:28", "up to an hour, is expected here, not '2h'"),
        (
            "x: {command: ram, tolerance: -1}",
            "1:30",
            "a number, or a size such as 32M, is expected",
        ),
        ("x: {command: ram, tolerance: 1}", "1:1", "'x' is a str: only numbers have a tolerance"),
        ('x: {command: ram, parameters: "\'b"}', "1:31", "told apart: no closing quotation"),
        ("x: {command: ram, parameters: {a: b}}", "1:31", "is expected here, not a mapping"),
        ("X: {command: ram}", "1:1", "'X' is no name for a property"),
        ("presence: {command: ram}", "1:1", "'presence' is known of every host"),
        ("lambda: {command: ram}", "1:1", "'lambda' is a word of expressions"),
        ("x: ram", "1:4", "a mapping with command, parameters, return_type, ticks and so on"),
        ("x: {command: }", "1:5", "'command' has no value"),
        ("- x", "1:1", "a mapping of names is expected here"),
    ],
)
def test_mistake_is_told_with_its_place(text: str, place: str, mistake: str) -> None:
    (found,) = mistakes(text)
    assert found.startswith(f"properties.yaml:{place}: ")
    assert mistake in found


def test_mistake_in_an_ini_file_is_told_with_its_place() -> None:
    first, second, third = mistakes("[x]\ncommand = rem\nticks = 6 0\nevery = 5\n", "p.ini")
    assert first.startswith("p.ini:2:11: one of cpu, memory, program, ram is expected here")
    assert second.startswith("p.ini:3:9: seconds from one reading to the next")
    assert third.startswith("p.ini:4:1: there is no attribute 'every' in a property")


def test_all_mistakes_of_all_files_are_told_at_once() -> None:
    yaml = Source("a.yaml", Level.SITE, 0, "/"), b"one: {command: rem}\ntwo: {command: ram}"
    ini = Source("b.ini", Level.SITE, 1, "/"), b"[two]\ncommand = ram\n[three]\nticks = x\n"
    with pytest.raises(EncampError) as caught:
        read_properties([yaml, ini], PLUGINS)
    assert caught.value.sentence == "There are 3 mistakes in 2 files."
    assert "b.ini:1:2: 'two' was given already, at a.yaml:2" in caught.value.detail


@root_only
def test_files_of_the_site_are_read(host: Host) -> None:
    before = property_stamps()
    assert load_properties(PLUGINS) == shipped_properties()
    host.write(host.site, "one: {command: cpu, parameters: count}", "properties.yaml")
    host.write(host.site, "[two]\ncommand = ram\n", "properties.ini")
    names = {definition.name for definition in load_properties(PLUGINS)}
    assert {"one", "two", *SHIPPED} == names
    assert property_stamps() != before


@root_only
def test_file_that_others_can_write_to_is_refused(host: Host) -> None:
    host.write(host.site, "one: {command: cpu}", "properties.yaml").chmod(0o666)
    with pytest.raises(EncampError) as caught:
        load_properties(PLUGINS)
    assert caught.value.code is Code.CONFIGURATION
    assert "can be written to by others" in caught.value.sentence
