"""What people see first: lists of commands that fit a terminal, and hints that lead on."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from encamp.cli.main import exit_code, run_command
from encamp.model.errors import Code, EncampError

GROUPS = [[], ["env"], ["image"], ["template"], ["command"], ["trigger"], ["site"]]


@pytest.mark.parametrize("group", GROUPS, ids=" ".join)
def test_no_command_is_told_by_half_a_sentence(
    group: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command([*group, "--help"]) == 0
    commands = capfd.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert commands
    assert [line for line in commands if line.endswith("...")] == []


def test_help_is_a_word_for_it_too(capfd: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["run"], ["trigger", "test"]):
        assert run_command(["help", *words]) == 0
        helped = capfd.readouterr().out
        assert run_command([*words, "--help"]) == 0
        assert helped == capfd.readouterr().out != ""


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["command", "send"], "encamp command send"),
        (["trigger", "show"], "encamp trigger show"),
        (["command", "sned"], "encamp command"),
        (["hosts", "--nix"], "encamp hosts"),
        (["nix"], "encamp"),
    ],
)
def test_wrong_words_lead_to_the_help_of_the_command_that_was_meant(
    words: list[str], command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_command(words) == Code.USAGE.value
    assert f"See '{command} --help'." in capfd.readouterr().err


def test_file_that_is_missing_is_told_before_a_manager_that_is(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ENCAMP_DOOR", str(tmp_path / "nobody.sock"))
    missing = tmp_path / "nosuch.yaml"
    assert run_command(["trigger", "test", "--triggers", str(missing)]) == Code.INPUT_MISSING.value
    assert f"{missing} is not there" in capfd.readouterr().err


@pytest.mark.parametrize("file", ["/my/file.yaml", "./file", "my file.yaml", "file.ini"])
def test_file_in_place_of_a_triggers_name_is_told_where_it_belongs(
    file: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["trigger", "test", file]) == Code.USAGE.value
    said = capfd.readouterr().err
    assert f"'{file}' is a file, and the argument of 'encamp trigger test' is" in said
    assert f"encamp trigger test --triggers {shlex.quote(file)}\n" in said


def test_what_there_will_never_be_room_for_is_not_said_to_have_room_later() -> None:
    never = EncampError(Code.NO_ROOM, "No host of this site could ever take that.")
    later = EncampError(Code.NO_ROOM, "Not enough memory.", transient=True)
    assert (exit_code(never), exit_code(later)) == (Code.USAGE.value, Code.NO_ROOM.value)
