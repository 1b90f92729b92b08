"""docs/placement.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from encamp.core.expressions import compile_expression
from encamp.core.kinds import schema_of
from encamp.core.placement.ranks import NAMED
from encamp.core.schema import Type
from encamp.describe.property_files import shipped_properties
from encamp.model.request import Cause, RequestState

DOCUMENT = (Path(__file__).parents[3] / "docs" / "placement.md").read_text()
SITE = schema_of(shipped_properties(), {"fast"})
ASKED = re.findall(r'--(requirements|rank) "([^"]+)"', DOCUMENT)


def test_shipped_ranks_are_described() -> None:
    for name, rank in NAMED.items():
        assert f"| `{name}` | {rank.help} |" in DOCUMENT


def test_every_state_and_cause_is_described() -> None:
    for state in RequestState:
        assert f"\n| {state.value} | " in DOCUMENT
    for cause in Cause:
        # That a host is absent is said of the host.
        assert cause in (Cause.NONE, Cause.ABSENT) or f"\n| `{cause.value}` | " in DOCUMENT


@pytest.mark.parametrize(("option", "text"), ASKED)
def test_examples_make_sense(option: str, text: str) -> None:
    wants = Type.BOOL if option == "requirements" else Type.FLOAT
    compile_expression(text, SITE, about={"host"}, wants=wants)


def test_there_are_examples() -> None:
    assert {option for option, _ in ASKED} == {"requirements", "rank"}
