"""Managers that write into a store until they are killed, one after the other.

Each says on a pipe what it was told is written; all that is printed, one JSON list a line:
`["command", id, state]`, `["output", id, bytes]`, `["event", number, sentence]`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

from encamp.home import Home
from encamp.manager.store.store import Store
from encamp.model.command import CommandState
from tests.manager.store.stores import command, event

CALLERS = 5
LINE = b"0123456789abcdef"


async def write(where: str, home: Path, name: str, pipe: int) -> None:
    store = await Store.open(where, Home(home))

    def tell(*what: object) -> None:
        os.write(pipe, json.dumps(what).encode() + b"\n")

    async def issue(caller: int) -> None:
        for count in range(1_000_000):
            id = f"{name}-{caller}-{count}"
            await store.add_commands([command(id)])
            tell("command", id, CommandState.WAITING.value)
            for state in (CommandState.RUNNING, CommandState.DONE):
                length = await store.add_output(
                    id, 0 if state is CommandState.RUNNING else 16, LINE
                )
                tell("output", id, length)
                moved = await store.move_command(command(id, state=state))
                tell("command", id, moved.state.value)
            for happened in await store.add_events([event(id)]):
                tell("event", happened.number, happened.sentence)

    await asyncio.gather(*(issue(caller) for caller in range(CALLERS)))


def one_life(where: str, home: Path, name: str) -> bytes:
    """What it said before it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        asyncio.run(write(where, home, name, writing))
        os._exit(1)
    os.close(writing)
    said = os.read(reading, 65536)
    limit = time.monotonic() + random.uniform(0.0, 0.15)
    while (left := limit - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0]:
            said += os.read(reading, 65536)
    os.kill(child, signal.SIGKILL)
    while piece := os.read(reading, 65536):
        said += piece
    os.close(reading)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        raise SystemExit("It ended before it was killed.")
    return said


def main() -> None:
    where, home, lives = sys.argv[1:]
    for life in range(int(lives)):
        sys.stdout.buffer.write(one_life(where, Path(home), f"life{life}"))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
