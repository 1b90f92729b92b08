"""Asking the manager: where its door is, and going on with an answer when it was restarted."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar, overload

import msgspec

from encamp.cli.patience import waiting
from encamp.cli.site_door import far_door, is_told_where
from encamp.door.client import AnyDoor, UnansweredError, WentAwayError, ask, ask_async
from encamp.door.places import MANAGER_SOCKET
from encamp.door.questions import LOOKS, AskStatus, Question, Status
from encamp.home import SYSTEM_HOME, default_home, user_name
from encamp.model.errors import Code, EncampError
from encamp.model.site import Site

A = TypeVar("A", bound=msgspec.Struct)
B = TypeVar("B", bound=msgspec.Struct)

AGAIN = 0.5
"""Seconds after which a manager that went away is tried again."""
SUCCESSION = 10.0
"""Seconds in which another may take its place."""


def door() -> AnyDoor:
    """The manager's: as ENCAMP_DOOR, ENCAMP_URL, a login or the site's file say; or one's own, or
    the system's."""
    chosen = os.environ.get("ENCAMP_DOOR")
    if chosen:
        return Path(chosen).absolute()
    return far_door() or near_door()


def near_door() -> Path:
    """That of a manager on this host."""
    site = _site()
    if site is not None and site.door:
        return Path(site.door)
    own = default_home().root / MANAGER_SOCKET
    if os.environ.get("ENCAMP_HOME") or own.exists():
        return own
    return SYSTEM_HOME / MANAGER_SOCKET


def _site() -> Site | None:
    """How the site is set up. What is wrong with the file is not the business of everybody."""
    from encamp.describe.site_file import load_site

    try:
        return load_site()
    except EncampError:
        if os.geteuid() == 0:
            raise
        return None


def asked(question: Question, expected: type[A]) -> list[A]:
    """The whole answer. Whoever waits for it at a terminal is told for what."""
    return asked_for_two(question, expected, expected)


def asked_for_two(question: Question, expected: type[A], other: type[B]) -> list[A | B]:
    """The whole answer, whose items are of one type or the other."""
    with waiting(_what_is_waited_for):
        return asked_quietly(question, expected, other)


def asked_quietly(question: Question, expected: type[A], other: type[B]) -> list[A | B]:
    """The same for those who have the terminal for themselves. A manager that leaves in the middle
    of it may have a successor, which is given a moment."""
    until = 0.0
    while True:
        try:
            return list(ask(door(), question, expected, other))
        except UnansweredError as error:
            if isinstance(error, WentAwayError) and isinstance(question, LOOKS) and not until:
                until = time.monotonic() + SUCCESSION
            if time.monotonic() >= until:
                raise _with_advice(error) from error
            time.sleep(AGAIN)


def _what_is_waited_for() -> str:
    """A manager tells how it is even while it waits for its store."""
    try:
        (status,) = ask(door(), AskStatus(), Status)
    except (EncampError, ValueError):
        return "Waiting for the manager."
    if status.store:
        return "The manager waits for its store; 'encamp status' tells why."
    return "Waiting for the manager's answer."


def asked_one(question: Question, expected: type[A]) -> A:
    answer = asked(question, expected)
    if len(answer) != 1:
        raise EncampError(Code.PROTOCOL, f"The manager gave {len(answer)} answers instead of one.")
    return answer[0]


def as_whom() -> str:
    """The user that the site takes the caller for: on this host, whoever that is."""
    if isinstance(door(), Path):
        return user_name(os.geteuid())
    found = asked_one(AskStatus(), Status).asker
    return found.user if found is not None else ""


def _with_advice(error: UnansweredError) -> EncampError:
    """On a node of a larger site, the manager is most likely on another."""
    if error.code is not Code.UNREACHABLE or is_told_where():
        return error
    site = _site()
    if site is None or not site.bus:
        return error
    return UnansweredError(
        error.code,
        error.sentence,
        f"From here, the manager of '{site.name}' is asked with a token: see 'encamp login --help'."
        " On its own host, 'encamp manager' starts it.",
        transient=error.transient,
        detail=error.detail,
    )


@overload
def following(
    question: Callable[[], Question],
    expected: type[A],
    /,
    *,
    before_it_is_said: Callable[[], None] = ...,
) -> AsyncGenerator[A, None]: ...
@overload
def following(
    question: Callable[[], Question],
    expected: type[A],
    other: type[B],
    /,
    *,
    before_it_is_said: Callable[[], None] = ...,
) -> AsyncGenerator[A | B, None]: ...
async def following(
    question: Callable[[], Question],
    /,
    *expected: type[msgspec.Struct],
    before_it_is_said: Callable[[], None] = lambda: None,
) -> AsyncGenerator[msgspec.Struct, None]:
    """An answer that takes its time. When the manager goes away in the middle of it, the question
    is asked again, as it is by then, as soon as there is a manager again, and that it went is said.
    That there is one at the beginning is asked first."""
    asked_one(AskStatus(), Status)
    path, told = door(), False
    while True:
        try:
            async with aclosing(ask_async(path, question(), *expected)) as answer:
                async for item in answer:
                    told = False
                    yield item
            return
        except UnansweredError as error:
            if not told:
                before_it_is_said()
                print(f"encamp: {error.sentence} Waiting for it.", file=sys.stderr, flush=True)
                told = True
            await asyncio.sleep(AGAIN)


def no_host(patterns: list[str]) -> EncampError:
    if patterns:
        wanted = " or ".join(f"'{pattern}'" for pattern in patterns)
        return EncampError(
            Code.USAGE, f"No host of the site fits {wanted}.", "'encamp hosts' lists them."
        )
    return EncampError(
        Code.WRONG_STATE,
        "No host has joined this site yet.",
        "'encamp site add' makes a secret for one, and 'encamp site join' uses it there.",
    )
