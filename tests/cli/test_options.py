"""Options as people write them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from encamp.cli import options
from encamp.cli.run import command_of, machine_request
from encamp.model.errors import Code, EncampError
from encamp.model.job import Copy
from encamp.model.machine import Share

NAMES = st.text(st.characters(blacklist_characters="\0/", codec="utf-8"), min_size=1)


def escaped(name: str) -> str:
    """A name as the manual says it is written: a backslash before its colons and backslashes."""
    return re.sub(r"([:\\])", r"\\\1", name)


@example("ends in \\", "\\begins")
@given(NAMES, NAMES)
def test_any_name_can_be_written_in_a_pair(first: str, second: str) -> None:
    assert options.split(f"{escaped(first)}:{escaped(second)}", "--in") == [first, second]


def test_names_without_colons_need_no_escape() -> None:
    assert options.split("a b,c=é\n", "--in") == ["a b,c=é\n"]
    assert options.split(r"C\:\:d:e", "--in") == ["C::d", "e"]


def test_share_appears_under_its_own_path_unless_another_is_given(tmp_path: Path) -> None:
    assert options.parse_share(f"{tmp_path}") == Share(str(tmp_path), str(tmp_path))
    assert options.parse_share(f"{tmp_path}:ro") == Share(str(tmp_path), str(tmp_path), True)
    assert options.parse_share(f"{tmp_path}:/x:rw") == Share(str(tmp_path), "/x")
    assert options.parse_share("here:/x:ro") == Share(f"{Path.cwd()}/here", "/x", True)


@pytest.mark.parametrize("text", ["a:b:c", "a:", "a::ro", ":b", "", "a:/x:ro:ro"])
def test_senseless_share_is_refused(text: str) -> None:
    with pytest.raises(EncampError) as refused:
        options.parse_share(text)
    assert refused.value.code is Code.USAGE


def test_copy_has_a_source_and_perhaps_a_target() -> None:
    assert options.parse_copy("a", "--in") == Copy("a")
    assert options.parse_copy("a:b/", "--in") == Copy("a", "b/")


@pytest.mark.parametrize("text", ["a:b:c", "a:", ":b", ""])
def test_senseless_copy_is_refused(text: str) -> None:
    with pytest.raises(EncampError) as refused:
        options.parse_copy(text, "--out")
    assert refused.value.code is Code.USAGE
    assert "--out" in refused.value.sentence


def test_variable_is_given_a_value_or_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERE", "my own")
    assert options.parse_variable("A=b=c") == ("A", "b=c")
    assert options.parse_variable("A=") == ("A", "")
    assert options.parse_variable("HERE") == ("HERE", "my own")


@pytest.mark.parametrize("text", ["", "=x", "1A=x", "A-B=x", "NOT_HERE_AT_ALL"])
def test_senseless_variable_is_refused(text: str) -> None:
    with pytest.raises(EncampError) as refused:
        options.parse_variable(text)
    assert refused.value.code is Code.USAGE


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ("2s", 2), ("10m", 600), ("1.5h", 5400), ("1d", 86400)],
)
def test_time_limit_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert options.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "1w", "m", "1h30m", "soon"])
def test_senseless_time_limit_is_refused(text: str) -> None:
    with pytest.raises(EncampError) as refused:
        options.parse_duration(text)
    assert refused.value.code is Code.USAGE


def test_caller_is_who_the_kernel_says() -> None:
    user = options.caller()
    assert (user.uid, user.gid) == (os.geteuid(), os.getegid())
    assert user.gid in user.groups
    assert user.home.startswith("/")
    assert user.home != "/"


def test_relative_working_directory_is_refused() -> None:
    with pytest.raises(EncampError, match="not an absolute path"):
        command_of(["true"], None, "here", False)


def test_unknown_network_is_refused_with_those_there_are() -> None:
    with pytest.raises(EncampError, match="none, user, bridge"):
        machine_request("mini", None, None, None, None, None, "carrier", False, None)
