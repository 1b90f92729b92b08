"""Sizes as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encamp.describe.environments import find_environment, shipped_library
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB, Size, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("512", 512 * MIB),
        ("512M", 512 * MIB),
        ("512m", 512 * MIB),
        ("512MiB", 512 * MIB),
        ("512MB", 512 * MIB),
        (" 2 G ", 2048 * MIB),
        ("1.5G", 1536 * MIB),
        ("4096K", 4 * MIB),
        ("1T", 1024 * 1024 * MIB),
    ],
)
def test_size_is_read_as_people_write_it(text: str, value: int) -> None:
    assert parse_bytes(text, "--memory") == value


@pytest.mark.parametrize("text", ["", "M", "-1G", "1,5G", "1e9", "2P", "two", "0x10", "1G G"])
def test_senseless_size_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(EncampError) as refused:
        parse_bytes(text, "--memory")
    assert refused.value.code is Code.USAGE
    assert f"--memory '{text}'" in refused.value.sentence
    assert "512M" in refused.value.hint


def test_size_below_the_least_is_refused_with_the_least() -> None:
    with pytest.raises(EncampError, match="at least 64 MiB"):
        parse_bytes("10M", "--memory", least=64 * MIB)


@given(st.integers(0, 1 << 50))
def test_any_size_can_be_shown(value: int) -> None:
    number, unit = format_bytes(value).split(" ")
    assert unit in ("B", "KiB", "MiB", "GiB", "TiB")
    assert float(number) >= 0


def test_size_of_a_machine_mentions_its_disk_only_if_it_has_one() -> None:
    assert str(Size(1, 128 * MIB)) == "1 cpu, 128 MiB"
    assert str(Size(2, 2048 * MIB, 64 * MIB)) == "2 cpu, 2 GiB, 64 MiB disk"


def test_unknown_environment_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(EncampError) as refused:
        find_environment("debain12")
    assert refused.value.code is Code.UNKNOWN_ENVIRONMENT
    assert refused.value.hint == "Did you mean 'debian12'?"
    with pytest.raises(EncampError) as refused:
        find_environment("qqqq")
    assert refused.value.hint == f"There are: {', '.join(sorted(shipped_library().described))}."
