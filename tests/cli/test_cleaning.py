"""Nobody from elsewhere tells a terminal what to do, or writes what was not in a log."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest

from encamp.cli.bar import Bar
from encamp.cli.cleaning import LogFormatter, clean_lines, json_text, remark
from encamp.cli.daemons import run_daemon
from encamp.cli.listing import show_list
from encamp.cli.main import say
from encamp.cli.sending import Printer
from encamp.cli.tables import show, table
from encamp.door.questions import Output
from encamp.model.command import CommandState
from encamp.model.errors import Code, EncampError
from tests.cli.sample_site import command_record

HOSTILE = "a\x1b]0;b\x07\x1b[2J\r\x9b31mc\u202e\U000e0001 ü✓"
SAFE = "a\\x1b]0;b\\x07\\x1b[2J\\r\\x9b31mc\\u202e\\U000e0001 ü✓"


def test_lines_stay_lines_and_everything_else_is_shown() -> None:
    assert clean_lines(f"{HOSTILE}\n\tmore") == f"{SAFE}\n\tmore"


@pytest.mark.parametrize("indented", [True, False])
def test_json_is_safe_and_says_the_same(indented: bool) -> None:
    value = {"text": [HOSTILE, 1.5, None], HOSTILE: "\n"}
    text = json_text(value, indented=indented)
    assert json.loads(text) == value
    assert text.replace("\n", "").isprintable()
    assert "ü✓" in text


def test_log_shows_what_it_is_told_in_entries_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    root = logging.getLogger()
    before = root.handlers[:], root.level
    monkeypatch.setattr("sys.stderr", stream)
    try:
        root.handlers.clear()

        async def daemon() -> None:
            logging.getLogger("encamp").warning("Host x: %s\n2026-01-01 forged", HOSTILE)

        run_daemon(daemon, verbose=False)
        assert isinstance(root.handlers[0].formatter, LogFormatter)
    finally:
        root.handlers[:], root.level = before
    first, second = stream.getvalue().splitlines()
    assert first.endswith(f"WARNING Host x: {SAFE}")
    assert second == "    2026-01-01 forged"


def test_errors_and_progress_tell_a_terminal_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    say(EncampError(Code.USAGE, f"There is no '{HOSTILE}'.", HOSTILE, detail="\x1b[2J\nmore"))
    remark(f"x\n{HOSTILE}")
    monkeypatch.setattr("encamp.cli.bar.PATIENCE", 0.0)
    with Bar() as bar:
        bar.update(HOSTILE)
    assert capsys.readouterr().err.splitlines() == [
        "  | \\x1b[2J",
        "  | more",
        f"encamp: There is no '{SAFE}'.",
        f"        {SAFE}",
        f"encamp: x {SAFE}",
        f"encamp: {SAFE}",
    ]


class Screen(io.TextIOWrapper):
    def __init__(self, terminal: bool) -> None:
        super().__init__(io.BytesIO())
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    @property
    def shown(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


@pytest.mark.parametrize("terminal", [True, False])
def test_output_of_commands_is_raw_only_where_it_is_no_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = command_record(0.0, 1, "node1", "test.do", "root", CommandState.DONE)
    with Screen(terminal) as screen:
        monkeypatch.setattr("sys.stdout", screen)
        printer = Printer([record])
        # Letters come in pieces, too.
        for offset, byte in enumerate(f"{HOSTILE}\n".encode()):
            printer.piece(record, Output(record.id, offset, bytes([byte])))
        assert screen.shown == f"{SAFE if terminal else HOSTILE}\n"


def test_cells_of_tables_and_lists_tell_a_terminal_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = table("what", "why")
    made.add_row(HOSTILE, f"one\n{HOSTILE}")
    show(made)
    show_list(("what", "why"), [(HOSTILE, "x" * 200 + f"\n{HOSTILE}")], below=("why",))
    out = capsys.readouterr().out
    assert out.count(SAFE) == 4
    assert out.replace("\n", "").isprintable()
    assert f"one {SAFE}" in out
