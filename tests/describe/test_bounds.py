"""Whatever a file says, reading it ends soon, takes little memory, and says what is too much."""

from __future__ import annotations

import subprocess
import sys

import pytest

from encamp.describe.inheritance import LONGEST_CHAIN
from encamp.describe.reading import DEEPEST, LARGEST_FILE
from encamp.describe.references import DEEPEST as DEEPEST_REFERENCE
from tests.describe.describing import library, mistakes

SMALL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from tests.describe.describing import library
made = library(sys.stdin.read())
made.all()
print("\\n".join(str(mistake) for mistake in sorted(made.mistakes.found)[:3]))
"""


def within_bounds(text: str) -> str:
    """What is told about a text by a process that has a gigabyte and twenty seconds."""
    done = subprocess.run(
        [sys.executable, "-c", SMALL], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def laughs(levels: int) -> str:
    lines = ["it:", "  image: x", "  values:", "    l0: &l0 [" + ", ".join(["ha"] * 10) + "]"]
    for level in range(1, levels):
        again = ", ".join([f"*l{level - 1}"] * 10)
        lines.append(f"    l{level}: &l{level} [{again}]")
    return "\n".join(lines)


def test_a_billion_laughs_are_counted_and_not_laughed() -> None:
    assert "describes more than 2,000,000 values" in within_bounds(laughs(10))


def test_a_thousand_laughs_are_fine() -> None:
    assert mistakes(laughs(3)) == []


def doubling(levels: int, text: str) -> str:
    lines = ["it:", "  image: x", "  values:", f"    v0: {text}"]
    lines += [
        f'    v{level}: "${{values.v{level - 1}}}${{values.v{level - 1}}}"'
        for level in range(1, levels)
    ]
    lines.append(f"  context: {{user_data: '${{values.v{levels - 1}}}'}}")
    return "\n".join(lines)


def test_texts_that_double_by_reference_end_at_a_mebibyte() -> None:
    assert "longer than a MiB" in within_bounds(doubling(60, "ha"))
    assert mistakes(doubling(10, "ha")) == []


def test_mappings_that_double_by_reference_are_counted() -> None:
    lines = ["it:", "  image: x", "  values:", "    v0: {x: ha}"]
    for level in range(1, 60):
        again = f"${{values.v{level - 1}}}"
        lines.append(f'    v{level}: {{a: "{again}", b: "{again}"}}')
    assert "copy more than 200,000 values" in within_bounds("\n".join(lines))


def test_lists_that_double_by_reference_are_counted() -> None:
    lines = ["it:", "  image: x", "  values:", "    v0: [ha]"]
    for level in range(1, 60):
        again = f"${{values.v{level - 1}}}"
        lines.append(f'    v{level}: ["{again}", "{again}"]')
    assert "copy more than 200,000 values" in within_bounds("\n".join(lines))


def test_small_file_cannot_ask_for_endless_lists() -> None:
    many = ", ".join(f"c{number}" for number in range(9000))
    text = f"base: {{image: x, classes: [{many}]}}\n"
    text += "".join(f"e{number}: {{extends: base, classes+: [x]}}\n" for number in range(10_000))
    assert "too much is inherited" in within_bounds(text)


def chain(length: int) -> str:
    text = "e0: {image: x, cpus: 1}\n"
    return text + "".join(f"e{number}: {{extends: e{number - 1}}}\n" for number in range(1, length))


def test_chains_have_an_end() -> None:
    assert mistakes(chain(LONGEST_CHAIN)) == []
    assert f"more than {LONGEST_CHAIN} environments" in mistakes(chain(LONGEST_CHAIN + 2))[0]
    assert "more than" in within_bounds(chain(20_000))


def reference_chain(length: int) -> str:
    text = "e0: {image: x, cpus: 1}\n"
    return text + "".join(
        f"e{number}: {{image: x, cpus: '${{e{number - 1}.cpus}}'}}\n" for number in range(1, length)
    )


def test_chains_of_references_have_the_same_end_from_wherever_they_are_followed() -> None:
    last = DEEPEST_REFERENCE
    assert mistakes(reference_chain(last + 1)) == []
    made = library(reference_chain(last + 2))
    assert made.environment(f"e{last + 1}") is None
    assert "references lead to one another" in str(next(iter(made.mistakes.found)))
    assert "references lead to one another" in mistakes(reference_chain(last + 2))[0]
    assert "references lead to one another" in within_bounds(reference_chain(20_000))


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ("{a: ", "}")])
def test_deep_nesting_is_refused_where_it_begins(opening: str, closing: str) -> None:
    deep = 100_000
    told = within_bounds(f"it: {{values: {{x: {opening * deep}{closing * deep}}}}}")
    assert f"nested more than {DEEPEST} levels deep" in told


def test_deep_blocks_are_refused_too() -> None:
    lines = "\n".join(" " * level + "a:" for level in range(2000))
    assert f"nested more than {DEEPEST} levels deep" in within_bounds(lines)


def test_file_that_is_too_large_is_not_parsed() -> None:
    (told,) = mistakes("#" * (LARGEST_FILE + 1))
    assert told == "0.yaml:1:1: the file is larger than 16 MiB"


def test_many_parents_and_their_common_ancestors_are_each_met_once() -> None:
    text = "a0: {image: x}\nb0: {extends: a0}\n"
    for number in range(1, 45):
        parents = f"[a{number - 1}, b{number - 1}]"
        text += f"a{number}: {{extends: {parents}}}\nb{number}: {{extends: {parents}}}\n"
    assert within_bounds(text).strip() == ""


def test_images_that_stand_on_one_another_have_an_end() -> None:
    text = "e0: {image: {debian: sid}}\n" + "".join(
        f"e{number}: {{image: {{from: e{number - 1}}}}}\n" for number in range(1, 10_000)
    )
    assert "stands on more than 32 others" in within_bounds(text)


@pytest.mark.parametrize("wrong", ["extends: nothing{}", "image: x, cpus: '${{nothing{}.x}}'"])
def test_ten_thousand_mistakes_are_told_soon(wrong: str) -> None:
    text = "".join(f"e{number}: {{{wrong.format(number)}}}\n" for number in range(10_000))
    assert len(within_bounds(text).splitlines()) == 3


def test_long_name_is_not_repeated_at_length() -> None:
    (told,) = mistakes(f"it: {{image: x, {'long' * 100_000}: 1}}")
    assert len(told) < 600


def test_ten_thousand_environments_are_not_too_many() -> None:
    text = "".join(f"e{number}: {{image: x}}\n" for number in range(10_000))
    made = library(text)
    assert len(made.all()) == 10_000
    assert not made.mistakes
