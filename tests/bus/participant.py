"""A participant in a process of its own, to be killed or stopped by a test.

It prints a line when it is on the bus, answers every message with how many it got before, and
writes what it got to a file, a line for each.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from encamp.bus.bus import Message
from encamp.bus.opening import open_bus
from encamp.model.site import Site


async def _take_part(site: Site, name: str, groups: Sequence[str], file: str) -> None:
    count = 0
    with open(file, "ab", buffering=0) as kept:

        async def handle(message: Message) -> bytes:
            nonlocal count
            kept.write(message.sender.encode() + b" " + message.body[:40] + b"\n")
            count += 1
            return b"%d" % (count - 1)

        async with open_bus(site, name, groups, handle) as bus:
            sys.stdout.write("here\n")
            sys.stdout.flush()
            await bus.ended()


@contextmanager
def participant(
    site: Site, name: str, file: Path, groups: Sequence[str] = (), prefix: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    words = [msgspec.json.encode(site).decode(), name, str(file), *groups]
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "tests.bus.participant", *words], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"here\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    text, name, file, *groups = sys.argv[1:]
    asyncio.run(_take_part(msgspec.json.decode(text, type=Site), name, groups, file))
