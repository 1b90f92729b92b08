"""Plug-ins of another package, as the tests install it; see `conftest.py`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from encamp.agent.commands.plugin import Context, command
from encamp.model.errors import Code, EncampError


@command(timeout=30)
def everything(
    context: Context,
    *,
    text: Annotated[str, "any text"],
    number: int,
    share: float = 0.5,
    really: bool = False,
    items: list[Any] | None = None,
    table: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what it was given."""
    return {
        "text": text,
        "number": number,
        "share": share,
        "really": really,
        "items": items,
        "table": table,
        "issuer": context.issuer,
    }


def count(context: Context, *, file: str, seconds: float = 0.0) -> None:
    """Leave a line in a file each time it is carried out."""
    with Path(file).open("a") as counter:
        counter.write("once\n")
    time.sleep(seconds)


def talk(context: Context, *, lines: int, seconds: float = 0.0) -> int:
    """Print numbered lines, on both streams and through the context."""
    for number in range(lines):
        if number % 3 == 0:
            context.write(f"line {number}\n")
        else:
            print(f"line {number}", file=sys.stderr if number % 3 == 1 else sys.stdout)
        time.sleep(seconds)
    return lines


def copy(context: Context, *, file: str) -> None:
    """Print what is added to a file, until that is `end`."""
    seen = 0
    while not (text := Path(file).read_text()).endswith("end"):
        context.write(text[seen:])
        seen = len(text)
        time.sleep(0.01)


def flood(context: Context, *, megabytes: int) -> None:
    for _ in range(megabytes):
        context.write(b"x" * (1 << 20))


def refuse(context: Context) -> None:
    raise EncampError(Code.NO_ROOM, "There is no room.", "Make some.", detail="what was said")


def stumble(context: Context) -> None:
    raise KeyError("missing")


def fill(context: Context) -> None:
    Path("/dev/full").write_bytes(b"more")


def boast(context: Context, *, size: int) -> str:
    return "x" * size


def lie(context: Context) -> int:
    return "no number"  # type: ignore[return-value]


def vanish(context: Context) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sever(context: Context) -> int:
    """Write to a peer that has gone; return how a program ends that is told of the same."""
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(BrokenPipeError):
        os.write(writer, b"more")
    return subprocess.run(["sh", "-c", "kill -PIPE $$"], check=False).returncode


async def wait(context: Context, *, file: str) -> None:
    """Wait for ever; tidy up when told to stop."""
    import asyncio

    context.write("waiting\n")
    try:
        await asyncio.sleep(3600)
    finally:
        Path(file).write_text("tidied up")


def deaf(context: Context, *, file: str) -> None:
    """Leave processes everywhere, and do not listen."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hidden = ["setsid", "env", "-i", "/bin/sh", "-c", f"echo $$ >> {file}; sleep 3600 & wait"]
    subprocess.Popen(hidden)
    subprocess.Popen(["sh", "-c", f"trap '' TERM; echo $$ >> {file}; sleep 3600; sleep 3600"])
    while len(Path(file).read_text().split() if Path(file).exists() else ()) < 2:
        time.sleep(0.01)
    context.write("started\n")
    while True:
        time.sleep(1)


class Leaving:
    """Ends the process of whoever looks at it."""

    @property
    def at_once(self) -> None:
        sys.exit("gone")


leave = Leaving()


def unannotated(context: Context, *, what) -> None:  # type: ignore[no-untyped-def]
    pass
