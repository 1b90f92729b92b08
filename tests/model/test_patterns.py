"""Expressions that people write for texts of others."""

from __future__ import annotations

import pytest

from encamp.model.patterns import Pattern


def test_all_of_a_text_fits_or_it_does_not() -> None:
    pattern = Pattern("/dev/(sd[a-z]|nvme[0-9]n1)")
    assert pattern.fits("/dev/sda")
    assert not pattern.fits("/dev/sda1")
    assert not pattern.fits("/dev/sda\n")


def test_alternatives_are_alternatives_also_by_lines() -> None:
    assert Pattern("^a|b$", lines=True).find("xa\nab") == "a"
    assert Pattern("a|b").fits("b")


def test_the_first_group_is_found_or_all_of_it() -> None:
    assert Pattern("load: ([0-9.]+)").find("the load: 2.5 now") == "2.5"
    assert Pattern("load").find("the load") == "load"
    assert Pattern("a(b)?").find("ac") == ""
    assert Pattern("x").find("y") is None


WRONG = ["(", ")|(", "a{100000}", r"(a)\1", "(?=a)", "\ud800", "(a)" * 101, "a" * 20_000]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_none_is_told(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Pattern(wrong, lines=True)


def test_no_text_takes_long() -> None:
    assert not Pattern("(a+)+").fits("a" * 1_000_000 + "b")
    assert not Pattern("(a|a)*").fits("a" * 1_000_000 + "\udc80")
