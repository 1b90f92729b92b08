"""What docs/simulation.md says is what the simulation does."""

from __future__ import annotations

from pathlib import Path

import pytest

from encamp.describe.words import SECONDS
from encamp.model.size import parse_bytes
from encamp.sim.attributes import ENVIRONMENT, GENERATED, HOST_KIND, READING
from encamp.sim.costs import MEASURED
from encamp.sim.manual import TABLES, updated
from encamp.sim.site import Generated, HostKind, Reading, Wanted
from tests.sim.sites import ROOT, SMALL, described

DOCUMENT = (ROOT / "docs" / "simulation.md").read_text()
BLOCKS = [block.partition("```")[0] for block in DOCUMENT.split("```yaml\n")[1:]]


def test_tables_are_up_to_date() -> None:
    assert updated(DOCUMENT) == DOCUMENT, "run 'make docs'"
    assert all(f"<!-- simulation: {name} -->" in DOCUMENT for name in TABLES)


@pytest.mark.parametrize("block", BLOCKS)
def test_descriptions_load(tmp_path: Path, block: str) -> None:
    if block.startswith("trace"):
        more = (
            "  big: {cpus: 8, memory: 8G}\nenvironments:\n  plain: {}\n  test: {}\n  debian: {}\n"
        )
        block = SMALL.replace("environments:\n", more) + block
    if block.startswith("policies"):
        block = SMALL + block
    assert described(tmp_path, block).hosts


def test_costs_are_the_ones_that_are_used() -> None:
    for cost in (MEASURED.clone, MEASURED.boot, MEASURED.template, MEASURED.end):
        assert f"| {cost} |" in DOCUMENT
    assert MEASURED.network == 125e6


def as_written(text: str) -> object:
    """What a default stands for, as it is written in a table."""
    if text[-1] in SECONDS and text[:-1].replace(".", "").isdigit():
        return float(text[:-1]) * SECONDS[text[-1]]
    return {"true": True, "false": False}.get(text, text)


@pytest.mark.parametrize(
    ("record", "made"),
    [
        (HOST_KIND, HostKind(cpus=1, memory=1)),
        (ENVIRONMENT, Wanted()),
        (GENERATED, Generated()),
        (READING, Reading()),
    ],
    ids=["hosts", "environments", "jobs", "trace"],
)
def test_defaults_in_tables_are_those_in_effect(record: object, made: object) -> None:
    for name, attribute in record.attributes.items():  # type: ignore[attr-defined]
        if attribute.default is None:
            continue
        value = getattr(made, name)
        text = as_written(attribute.default)
        if name in ("memory", "disk", "image", "network") and type(value) in (int, float):
            assert value == pytest.approx(parse_bytes(str(text), name), rel=0.01)
        elif isinstance(value, tuple):
            assert text == str([*value])
        elif isinstance(value, int | float) and not isinstance(value, bool):
            assert value == float(text)  # type: ignore[arg-type]
        else:
            assert text == getattr(value, "value", value)
