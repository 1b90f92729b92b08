"""docs/expressions.md shows the language as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from encamp.agent.commands.manual import shipped
from encamp.core.expressions import compile_call, compile_expression, functions, language
from encamp.core.expressions.compiler import BUILDERS
from encamp.core.kinds import schema_of
from encamp.core.triggers.calls import signatures
from encamp.describe.property_files import shipped_properties
from tests.core.expressions.published import tables

DOCUMENT = (Path(__file__).parents[3] / "docs" / "expressions.md").read_text()
SECTIONS = {
    section.split("\n", 1)[0]: section
    for section in re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)
}


SITE = schema_of(shipped_properties(), {"workers", "servers"})
"""What is known of a site on which nobody has defined anything."""


def inline_examples() -> list[str]:
    """Loops in the text, which may go over a line's end."""
    prose = re.sub(r"^```.*?^```|^\|.*?$", "", DOCUMENT, flags=re.MULTILINE | re.DOTALL)
    found = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
    return [code for code in found if " for " in code and "..." not in code]


def examples() -> list[tuple[str, str]]:
    return [
        (heading, line)
        for heading, section in SECTIONS.items()
        for block in re.findall(r"^```python\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]


@pytest.mark.parametrize("heading", tables())
def test_published_tables_are_those_of_the_compiler(heading: str) -> None:
    """`python -m tests.core.expressions.published` prints them as they should be."""
    assert tables()[heading] in SECTIONS[heading]


def test_there_are_examples() -> None:
    assert len(examples()) > 30


@pytest.mark.parametrize(("heading", "text"), examples())
def test_examples_make_sense(heading: str, text: str) -> None:
    if heading == "Calls":
        compile_call(text, SITE, signatures({one.name: one for one in shipped()}))
    else:
        compile_expression(text, SITE)


@pytest.mark.parametrize("text", inline_examples())
def test_examples_in_the_text_make_sense(text: str) -> None:
    compile_expression(text, SITE, wants=None)


def test_there_are_examples_in_the_text() -> None:
    assert len(inline_examples()) > 4


@pytest.mark.parametrize(
    "text",
    [one.example for table in (language.AGGREGATES, language.FUNCTIONS, language.METHODS)
     for one in table.values()],
)  # fmt: skip
def test_examples_of_functions_make_sense(text: str) -> None:
    compile_expression(text, SITE, wants=None)


def test_what_is_published_is_what_there_is() -> None:
    assert set(functions.BUILDERS) == language.CALLABLE
    inner = {"keyword", "comprehension", "FormattedValue"}
    assert {node.__name__ for node in BUILDERS} | inner == {
        node.__name__ for node in language.SYNTAX
    }
