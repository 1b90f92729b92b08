"""Processes of commands that are struck dead, as by kill -9, at a chosen moment.

python -m tests.agent.commands.struck_dead agent MOMENT HOME   an agent, that takes the command on
                                                               its standard input
python -m tests.agent.commands.struck_dead carrier MOMENT DIRECTORY

MOMENT counts what the process does to files and processes, as Python's audit events tell, from
where it begins with the command. Nothing of the product knows. Prints `alive` if that many
never came.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from encamp.agent.commands.carry import carry
from encamp.agent.commands.directory import CommandDirectory
from encamp.agent.commands.supervising import Commands
from encamp.bus.messages import Execute
from encamp.home import Home

COUNTED = frozenset(
    f"os.{name}"
    for name in ("mkdir", "rename", "remove", "rmdir", "utime", "truncate", "posix_spawn", "fork")
)


class Fate:
    def __init__(self, moment: int) -> None:
        self.left = moment
        self.pid = os.getpid()
        self.armed = False
        sys.addaudithook(self._count)

    def _count(self, event: str, arguments: tuple[Any, ...]) -> None:
        # To die before something is read, or before the next thing is written, is all the same.
        written = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if self.armed and (written or event in COUNTED) and os.getpid() == self.pid:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


async def agent(fate: Fate, home: Home, message: Execute) -> None:
    finished = asyncio.Event()

    def news() -> None:
        if any(news.ended for news in commands.tell()):
            finished.set()

    commands = Commands(home, news=news)
    async with commands:
        fate.armed = True
        await commands.execute(message)
        await finished.wait()
        commands.taken({}, commands.tell())
        fate.armed = False


def main() -> None:
    what, moment, where = sys.argv[1:]
    fate = Fate(int(moment))
    if what == "agent":
        message = msgspec.json.decode(sys.stdin.buffer.read(), type=Execute)
        asyncio.run(agent(fate, Home(Path(where)), message))
    else:
        fate.armed = True
        carry(CommandDirectory(Path(where)))
        fate.armed = False
    sys.stdout.write("alive\n")


if __name__ == "__main__":
    main()
