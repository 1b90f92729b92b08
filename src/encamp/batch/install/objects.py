"""What Grid Engine keeps to itself, read and written with its own command `qconf`.

A value is text, and empty if there is none: the line of a complex, the value of an attribute, what
a calendar says, or the name of a host that is in a list.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from encamp import programs
from encamp.batch.gridengine.calls import meant
from encamp.batch.install.changes import Object
from encamp.model.errors import Code, EncampError

COMPLEX, QUEUE, CONFIGURATION, CALENDAR = "complex", "queue", "configuration", "calendar"
ADMINISTRATIVE, SUBMIT = "administrative host", "submit host"
LISTS = {ADMINISTRATIVE: "h", SUBMIT: "s"}
"""The letter of each list of hosts in qconf's options."""

NOTHING = "NONE"
"""How Grid Engine writes that an attribute has no value."""


class Answers:
    """What Grid Engine has said: each question is asked once."""

    def __init__(self) -> None:
        self._said: dict[tuple[tuple[str, ...], ...], str] = {}

    def ask(self, surroundings: dict[str, str], *arguments: str) -> str:
        key = (*sorted(surroundings.items()), arguments)
        if key not in self._said:
            self._said[key] = ask(surroundings, *arguments)
        return self._said[key]


def read(change: Object, answers: Answers) -> str:
    around, name = change.surroundings, change.name
    match change.sort:
        case "complex":
            return complex_line(answers.ask(around, "-sc"), name)
        case "queue":
            return attributes(answers.ask(around, "-sq", name)).get(change.attribute, "")
        case "configuration":
            return attributes(answers.ask(around, "-sconf")).get(change.attribute, "")
        case "calendar":
            return calendar(around, name)
        case _:
            listed = answers.ask(around, f"-s{LISTS[change.sort]}").split()
            return name if name in listed else ""


def write(change: Object, value: str) -> None:
    around, name = change.surroundings, change.name
    match change.sort:
        case "complex":
            if not value:
                _withdraw(around, name)
            _pass(around, "-Mc", with_complex(ask(around, "-sc"), name, value))
        case "queue":
            ask(around, "-rattr", QUEUE, change.attribute, value or NOTHING, name)
        case "configuration":
            text = with_attribute(ask(around, "-sconf"), change.attribute, value)
            _pass(around, "-Mconf", text, "global")
        case "calendar":
            if value:
                _pass(around, "-Acal", f"calendar_name {name}\n{value}\n")
            else:
                _release(around, name)
                ask(around, "-dcal", name)
        case _:
            ask(around, f"-{'a' if value else 'd'}{LISTS[change.sort]}", name)


# ── what qconf says ──────────────────────────────────────────────────────────────────────────────


def attributes(said: str) -> dict[str, str]:
    """What `qconf` tells of a queue or a configuration; lines that end with a backslash go on."""
    joined = re.sub(r"\\\n\s*", "", said)
    found = {}
    for line in joined.splitlines():
        name, _, value = line.partition(" ")
        if name and not name.startswith("#"):
            found[name] = value.strip()
    return found


def complex_line(said: str, name: str) -> str:
    """The line of a complex, its words one blank apart."""
    for line in said.splitlines():
        words = line.split()
        if words and words[0] == name and not line.startswith("#"):
            return " ".join(words)
    return ""


def with_complex(said: str, name: str, line: str) -> str:
    """All complexes, with one changed, added, or taken out if its line is empty."""
    lines = [
        other for other in said.splitlines() if other.startswith("#") or other.split()[:1] != [name]
    ]
    return "\n".join([*lines, *([line] if line else [])]) + "\n"


def with_attribute(said: str, attribute: str, value: str) -> str:
    """A configuration with one attribute changed."""
    known = attributes(said)
    known[attribute] = value or NOTHING
    return "".join(f"{name} {each}\n" for name, each in known.items())


def calendar(around: dict[str, str], name: str) -> str:
    """`year NONE` and `week mon-sun=off`, in two lines."""
    try:
        said = attributes(ask(around, "-scal", name))
    except EncampError as error:
        if "is not a calendar" in error.detail:
            return ""
        raise
    return "\n".join(f"{each} {said.get(each, NOTHING)}" for each in ("year", "week"))


# ── where it is in use ───────────────────────────────────────────────────────────────────────────


def _release(around: dict[str, str], name: str) -> None:
    """Take a calendar from the hosts of queues that have it."""
    for queue in ask(around, "-sql").split():
        value = attributes(ask(around, "-sq", queue)).get("calendar", "")
        for hosts in re.findall(rf"\[([^=\]]+)={re.escape(name)}\]", value):
            for host in hosts.split(","):
                ask(around, "-purge", QUEUE, "calendar", f"{queue}@{host.strip()}")


def _withdraw(around: dict[str, str], name: str) -> None:
    """Have no host offer a complex any more."""
    for host in ask(around, "-sel").split():
        offers = attributes(ask(around, "-se", host)).get("complex_values", "")
        if name in [offer.partition("=")[0] for offer in offers.split(",")]:
            ask(around, "-dattr", "exechost", "complex_values", name, host)


# ── calling it ───────────────────────────────────────────────────────────────────────────────────


def ask(surroundings: dict[str, str], *arguments: str) -> str:
    purpose = "asking Grid Engine" if arguments[0].startswith("-s") else "changing Grid Engine"
    try:
        return programs.run(
            ["qconf", *arguments],
            purpose=purpose,
            code=Code.COMMAND_FAILED,
            # One line each, however long: lists have more blanks in them otherwise.
            environment={**os.environ, **surroundings, "SGE_SINGLE_LINE": "1"},
            silence=60,
        )
    except EncampError as error:
        understood = meant(error, purpose)
        if understood.code is Code.UNREACHABLE:
            raise understood from error
        raise


def _pass(surroundings: dict[str, str], option: str, text: str, name: str = "described") -> None:
    """Have it read a file; some take their object's name from the file's."""
    with tempfile.TemporaryDirectory(prefix="encamp-") as directory:
        file = Path(directory) / name
        file.write_text(text)
        ask(surroundings, option, str(file))
