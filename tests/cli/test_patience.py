"""Whoever waits at a terminal is told for what; nobody else is."""

from __future__ import annotations

import io
import sys
import threading
import time

import pytest

from encamp.cli import patience
from encamp.cli.patience import CLEAR_LINE, waiting


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PATIENCE", 0.0)
    monkeypatch.delenv("ENCAMP_QUIET", raising=False)


def until_told(screen: Screen) -> None:
    end = time.monotonic() + 30
    while not screen.getvalue():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_line_stands_while_one_waits_and_is_gone_afterwards(
    impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    with waiting(lambda: "The store is slow."):
        until_told(screen)
        assert screen.getvalue() == "encamp: The store is slow."
    assert screen.getvalue() == f"encamp: The store is slow.{CLEAR_LINE}"


def test_line_is_gone_when_there_is_an_error(
    impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)

    def fail() -> None:
        with waiting(lambda: "The store is slow."):
            until_told(screen)
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert screen.getvalue().endswith(CLEAR_LINE)


def test_what_comes_at_once_needs_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(patience, "PATIENCE", 600.0)
    with waiting(lambda: "never told"):
        pass
    assert screen.getvalue() == ""


@pytest.mark.parametrize("quiet", [True, False])
def test_nobody_else_is_told(impatient: None, monkeypatch: pytest.MonkeyPatch, quiet: bool) -> None:
    screen = Screen() if quiet else io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    if quiet:
        monkeypatch.setenv("ENCAMP_QUIET", "1")
    before = threading.active_count()
    with waiting(lambda: "not for you"):
        assert threading.active_count() == before
    assert screen.getvalue() == ""
