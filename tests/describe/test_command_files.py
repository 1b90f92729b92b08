"""What an administrator may write into commands.yaml and commands.ini."""

from __future__ import annotations

from textwrap import dedent

import pytest

from encamp.describe.command_files import read_command_settings
from encamp.describe.sources import Level
from encamp.model.errors import EncampError
from encamp.model.program import CommandSettings, ListedProgram
from encamp.model.property import ValueKind
from tests.describe.describing import source


def read(text: str, name: str = "commands.yaml") -> CommandSettings:
    return read_command_settings([(source(name, Level.SITE, 0), dedent(text).encode())])


def program(text: str, name: str = "commands.yaml") -> ListedProgram:
    (found,) = read(text, name).programs
    return found


def test_a_listed_program_is_a_command_with_typed_parameters() -> None:
    found = program("""
        health:
          run: [/usr/sbin/smartctl, --json, "{device}", "{times}", "{more}"]
          parameters:
            device: {pattern: "/dev/sd[a-z]", help: which disk}
            times: int
            more: {type: list, default: "[]"}
          returns: dict
          user: nobody
          directory: /tmp
          timeout: 30s
          help: Ask a disk how it is.
        """)
    assert found.words == ("/usr/sbin/smartctl", "--json", "{device}", "{times}", "{more}")
    assert (found.user, found.directory) == ("nobody", "/tmp")
    definition = found.definition
    assert (definition.name, definition.timeout) == ("program.health", 30.0)
    assert (definition.returns, definition.help) == (ValueKind.DICT, "Ask a disk how it is.")
    device, times, more = definition.parameters
    assert (times.kind, times.required) == (ValueKind.INT, True)
    assert (device.name, device.required, device.help) == ("device", True, "which disk")
    assert (more.kind, more.required, more.default) == (ValueKind.LIST, False, [])


def test_the_same_can_be_written_as_ini() -> None:
    settings = read(
        """
        [commands]
        accept = agent.ping, program.*
        at_once = 4

        [tail]
        run = /usr/bin/tail -n {lines} "{file}" '/var/log/a b'
        parameters = file, lines: int = 10
        timeout = 1m
        """,
        "commands.ini",
    )
    (found,) = settings.programs
    assert settings.accept == ("agent.ping", "program.*")
    assert settings.at_once == 4
    assert found.words == ("/usr/bin/tail", "-n", "{lines}", "{file}", "/var/log/a b")
    assert [(one.name, one.kind, one.default) for one in found.definition.parameters] == [
        ("file", ValueKind.STR, None),
        ("lines", ValueKind.INT, 10),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: {run: uptime}", "1:5: the program must be given with its whole path, not as 'uptime'"),
        ("a: {rum: /bin/true}", "there is no attribute 'rum' in a listed program; did you mean"),
        ("a: {help: x}", "'run' is missing"),
        ("a.b: {run: /bin/true}", "'a.b' is no name for a program"),
        (
            'a: {run: [/bin/ls, "{fil}"], parameters: file}',
            "no parameter 'fil'; did you mean 'file'",
        ),
        ("a: {run: /bin/ls, parameters: file}", "'file' is not used: write {file} in 'run'"),
        ('a: {run: [/bin/ls, "x{file}", "{file}"], parameters: file}', "a word of its own"),
        (
            "a: {run: '/bin/ls {n}', parameters: 'n: int = x'}",
            "the default of 'n' is not of type int",
        ),
        ("a: {run: '/bin/ls {n}', parameters: 'n: number'}", "names such as"),
        ('a: {run: "/bin/ls {n}", parameters: {n: {pattern: "["}}}', "a regular expression"),
        (
            'a: {run: "/bin/ls {n}", parameters: {n: {pattern: "[a-z]", default: "9"}}}',
            "a default is not accepted",
        ),
        ('a: {run: "/bin/ls \'"}', "a command line is expected"),
        ("a: {run: /bin/ls, timeout: soon}", "a time such as 30s"),
        ("commands: {at_once: 0}", "a number from 1 to 1000"),
        ("commands: {accept: [machine start]}", ""),
        ("commands: {acept: '*'}", "did you mean 'accept'"),
    ],
)
def test_mistakes_are_reported_with_their_place(text: str, said: str) -> None:
    if not said:
        assert read(text).accept == ("machine", "start")
        return
    with pytest.raises(EncampError) as refused:
        read(text)
    assert said in refused.value.detail
    assert refused.value.detail.startswith("commands.yaml:1:")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"file": "--version"}, "must not begin with '-'"),
        ({"file": "a", "more": ["ok", "-rf"]}, "must not begin with '-'"),
        ({"file": "a", "level": "9"}, "'level' must match '[1-5]', and '9' does not."),
        ({"file": "a\0"}, "zero byte"),
        ({"file": "a" * 120_000}, "too long"),
        ({"file": ["a"]}, "'file' is to be a text"),
        ({"file": "a", "process": -1}, "must not begin with '-'"),
        ({"file": "a", "more": [-1]}, "must not begin with '-'"),
        ({"file": "a", "share": float("nan")}, "'share' is no number"),
    ],
)
def test_arguments_that_could_mean_something_else_are_refused(
    arguments: dict[str, object], said: str
) -> None:
    found = program("""
        a:
          run: [/bin/a, "{file}", "{level}", "{more}", "{process}", "{share}", "{nice}"]
          parameters:
            file: {}
            process: {type: int, default: "1"}
            share: {type: float, default: "1.5"}
            nice: {type: int, default: "-5", pattern: "-?[0-9]+"}
            level: {pattern: "[1-5]", default: "1"}
            more: {type: list, default: "[]"}
        """)
    with pytest.raises(EncampError) as refused:
        found.check(arguments)  # type: ignore[arg-type]
    assert said in refused.value.sentence


def test_patterns_say_what_a_host_takes() -> None:
    settings = read("commands: {accept: ['machine.*', agent.ping]}")
    assert settings.accepts("machine.start")
    assert settings.accepts("agent.ping")
    assert not settings.accepts("image.pull")
    assert CommandSettings().accepts("image.pull")
