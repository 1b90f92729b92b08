"""The command reference in the documents is what the code says."""

from __future__ import annotations

from pathlib import Path

from encamp.cli.reference import reference

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "reference.md"


def test_reference_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == reference(), "run 'make docs'"
