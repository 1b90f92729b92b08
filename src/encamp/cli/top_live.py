"""The live view's terminal: drawn over again and again, and left as it was found."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
from rich.console import Console
from rich.live import Live

from encamp.cli.top import look
from encamp.cli.top_view import Snapshot, View
from encamp.door.client import UnansweredError
from encamp.model.errors import EncampError

KEYS = "q leaves"
LEAVE = frozenset("qQ\x03\x1b")
ARROWS = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]")
"""Keys that are sent as an escape with something after it."""


async def live(every: float) -> None:
    # Without a manager there is nothing to watch; later, it may be away for a while.
    snapshot = await look()
    # Shells and libraries write down here how large the terminal once was.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    console = Console(highlight=False, markup=False)
    over = asyncio.Event()
    with (
        _keys(over),
        Live(View(snapshot, keys=KEYS), console=console, screen=True, auto_refresh=False) as screen,
    ):
        resized = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, resized.set)
        try:
            while not over.is_set():
                screen.update(View(snapshot, keys=KEYS), refresh=True)
                resized.clear()
                await _first(over, resized, every)
                if not over.is_set() and not resized.is_set():
                    snapshot = await _next(snapshot)
        finally:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGWINCH)


async def _first(over: asyncio.Event, resized: asyncio.Event, every: float) -> None:
    """Wait for one of these, or for the time of the next look."""
    tasks = [asyncio.create_task(over.wait()), asyncio.create_task(resized.wait())]
    await asyncio.wait(tasks, timeout=every, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _next(former: Snapshot) -> Snapshot:
    try:
        return await look()
    except UnansweredError:
        trouble = "the manager does not answer"
    except EncampError as error:
        # One that is overwhelmed says so, and may answer in a moment.
        if not error.transient:
            raise
        trouble = error.sentence
    return msgspec.structs.replace(former, trouble=trouble)


@contextmanager
def _keys(over: asyncio.Event) -> Iterator[None]:
    """Keys are heard one by one and not shown; signals that end programs end this one in order."""
    loop = asyncio.get_running_loop()
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = termios.tcgetattr(0)

    def pressed() -> None:
        with suppress(OSError):
            typed = os.read(0, 64).decode(errors="replace")
            # An end of input is the end too.
            if not typed or LEAVE & set(ARROWS.sub("", typed)):
                over.set()

    tty.setcbreak(0, termios.TCSADRAIN)
    stopping = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    loop.add_reader(0, pressed)
    for number in ending:
        loop.add_signal_handler(number, over.set)
    try:
        yield
    finally:
        loop.remove_reader(0)
        for number in ending:
            loop.remove_signal_handler(number)
        signal.signal(signal.SIGTSTP, stopping)
        with suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        sys.stdout.flush()
