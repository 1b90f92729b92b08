"""What people see first: lists of commands that fit a terminal, and hints that lead on."""

from __future__ import annotations

import pytest

from encamp.cli.main import run_command
from encamp.model.errors import Code

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
