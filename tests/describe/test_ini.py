"""INI files: what they mean, where everything in them stands, and what is wrong with them."""

from __future__ import annotations

import configparser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from encamp.describe.ini import read_ini
from encamp.describe.nodes import Mapping, Mistakes, Scalar
from encamp.describe.reading import LARGEST_FILE
from encamp.describe.sources import Level, Source

EXPECTED = "a [section], 'name = value', or a comment (#) is expected here"
SOURCE = Source("x.ini", Level.SITE, 0, "/")


def read(text: str | bytes) -> dict[str, dict[str, Scalar]]:
    mistakes = Mistakes()
    root = read_ini(SOURCE, text if isinstance(text, bytes) else text.encode(), mistakes)
    assert [str(mistake) for mistake in mistakes.found] == []
    assert root is not None
    return sections(root)


def sections(root: Mapping) -> dict[str, dict[str, Scalar]]:
    found: dict[str, dict[str, Scalar]] = {}
    for name, section in root.entries.items():
        assert isinstance(section, Mapping)
        found[name] = {}
        for key, value in section.entries.items():
            assert isinstance(value, Scalar)
            found[name][key] = value
    return found


def texts(text: str | bytes) -> dict[str, dict[str, str]]:
    return {
        name: {key: value.text for key, value in section.items()}
        for name, section in read(text).items()
    }


def wrong(text: str | bytes) -> list[str]:
    mistakes = Mistakes()
    read_ini(SOURCE, text if isinstance(text, bytes) else text.encode(), mistakes)
    return [str(mistake).removeprefix("x.ini:") for mistake in sorted(mistakes.found)]


def test_sections_names_and_values_are_read() -> None:
    text = "; a comment\n[one]\na = 1\n# another\nb: two words \n\n[ two three ]\nc==x = [y]\nd =\n"
    assert texts(text) == {
        "one": {"a": "1", "b": "two words"},
        "two three": {"c": "=x = [y]", "d": ""},
    }


def test_everything_knows_its_place() -> None:
    mistakes = Mistakes()
    root = read_ini(SOURCE, b"\n[one]\n  a   =  1\nb = 2\n", mistakes)
    assert root is not None
    section = root.entries["one"]
    assert isinstance(section, Mapping)
    assert (root.where("one"), section.where("a"), section.where("b")) == ((2, 2), (3, 3), (4, 1))
    first, second = section.entries["a"], section.entries["b"]
    assert ((first.line, first.column), (second.line, second.column)) == ((3, 10), (4, 5))


def test_value_goes_on_in_indented_lines() -> None:
    text = "[s]\na = one\n  two\n\n  # no part of it\n\tthree\nb =\n  four\n"
    assert texts(text) == {"s": {"a": "one\ntwo\n\n\nthree", "b": "four"}}


def test_file_that_is_indented_throughout_is_read() -> None:
    assert texts("  [s]\n  a = 1\n  b = 2\n") == {"s": {"a": "1", "b": "2"}}


def test_perugias_trigger_gives_what_is_in_its_braces() -> None:
    text = (
        "[client_query]\n"
        "expr = { len(manager.clients) != 0 }\n"
        "cmd = { sender.send_get_property() }\n"
        "ticks = 30\n"
        "on_update_check = no\n"
    )
    section = read(text)["client_query"]
    assert {key: value.text for key, value in section.items()} == {
        "expr": "len(manager.clients) != 0",
        "cmd": "sender.send_get_property()",
        "ticks": "30",
        "on_update_check": "no",
    }
    assert (section["expr"].line, section["expr"].column) == (2, 10)


@pytest.mark.parametrize(
    "text",
    [
        "[s]\nx = {\n    (a\n     # why\n     and b)\n}\n",
        "[s]\nx = {   \n\n    (a\n\n     and b)   }\n",
        "[s]\nx =\n  {\n    (a\n\n     and b)\n  }\n",
    ],
)
def test_place_in_braces_is_a_place_in_the_file(text: str) -> None:
    value = read(text)["s"]["x"]
    lines = text.split("\n")
    for number, line in enumerate(value.text.split("\n")):
        begins = value.column - 1 if number == 0 else 0
        if line:
            assert lines[value.line - 1 + number][begins:].startswith(line)
    assert value.text == "(a\n\n     and b)"


def test_braces_within_braces_are_part_of_the_value() -> None:
    assert texts("[s]\nx = { {'a': 1} }\ny = {}\nz = a {b}\n") == {
        "s": {"x": "{'a': 1}", "y": "", "z": "a {b}"}
    }


def test_nothing_is_interpolated() -> None:
    value = read("[s]\na = %(b)s ${c} %d\n")["s"]["a"]
    assert value.text == "%(b)s ${c} %d"
    assert not value.refers


def test_other_systems_ends_of_lines_are_understood() -> None:
    assert texts(b"\xef\xbb\xbf[s]\r\na = 1\r\nb = x\r\n  y\r\n") == {"s": {"a": "1", "b": "x\ny"}}


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("a = 1\nb = 2\n", ["1:1: 'a' belongs to no section; begin one: [name]"]),
        ("[s]\na = 1\n[s]\nb = 1\n", ["3:1: the section [s] was begun already, at line 1"]),
        ("[s]\na = 1\n\na = 2\n", ["4:1: 'a' was given already, at line 2"]),
        ("[s]\n  junk\n", [f"2:3: {EXPECTED}, not 'junk'"]),
        ("[s]\n= 1\n", [f"2:1: {EXPECTED}, not '= 1'"]),
        ("[s\na = 1\n", ["1:1: a [section] is expected here, not '[s'"]),
        ("[]\n", ["1:1: a [section] is expected here, not '[]'"]),
        ("[s] x\n", ["1:1: a [section] is expected here, not '[s] x'"]),
        ("[s]\nx = { a\ny = 1\n", ["2:5: this brace is not closed; end the value with '}'"]),
        ("[s]\nx = {\n", ["2:5: this brace is not closed; end the value with '}'"]),
        (b"[s]\na = \xff\n", ["2:5: this is not UTF-8 text"]),
        (b"[s]\na = \x1b[31m\n", ["2:5: a control character is not allowed here"]),
        ("[s]\na =\x00\n", ["2:4: a control character is not allowed here"]),
    ],
)
def test_mistakes_are_told_with_their_places(text: str | bytes, mistakes: list[str]) -> None:
    assert wrong(text) == mistakes


def test_what_is_right_beside_a_mistake_is_still_read() -> None:
    mistakes = Mistakes()
    root = read_ini(SOURCE, b"[a]\njunk\nx = 1\n[b]\ny = 2\n", mistakes)
    assert root is not None
    assert len(mistakes.found) == 1
    assert {key: value.text for key, value in sections(root)["b"].items()} == {"y": "2"}


def test_huge_file_is_refused() -> None:
    assert wrong(b"#" * (LARGEST_FILE + 1)) == [
        f"1:1: the file is larger than {LARGEST_FILE >> 20} MiB"
    ]


NAMES = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True).filter(lambda name: name != "default")
VALUES = st.from_regex(r"([a-zA-Z0-9_.,/=:%-][ a-zA-Z0-9_.,/=:%#;-]{0,20})?", fullmatch=True)


@given(st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=4), max_size=4))
def test_simple_files_mean_what_pythons_own_reader_makes_of_them(
    written: dict[str, dict[str, str]],
) -> None:
    text = "".join(
        f"[{name}]\n" + "".join(f"{key} = {value}\n" for key, value in section.items())
        for name, section in written.items()
    )
    parser = configparser.ConfigParser(interpolation=None)
    parser.read_string(text)
    assert texts(text) == {name: dict(parser[name]) for name in parser.sections()}


@given(st.text(alphabet="[]{}=:# ;ab\n\t\\\"'%$\r", max_size=60) | st.text(max_size=30))
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    mistakes = Mistakes()
    lines = text.count("\n") + 1
    root = read_ini(SOURCE, text.encode(errors="replace"), mistakes)
    assert all(1 <= mistake.line <= lines and mistake.column >= 1 for mistake in mistakes.found)
    for section in sections(root).values() if root is not None else ():
        assert all(1 <= value.line <= lines and value.column >= 1 for value in section.values())
