"""The prepared process: python -m encamp.agent.commands.preparing HOME SOCKET

It has imported what commands of requests need, and does nothing but fork: each child is such a
command's carrier, begun a tenth of a second sooner than by a fresh interpreter, and as much on its
own. It says which children it has made and which have ended, and ends when its agent does.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from encamp.agent.commands.carry import carry
from encamp.agent.commands.directory import CommandDirectory
from encamp.agent.commands.family import MARK
from encamp.agent.commands.starting import DEFAULT, LOG
from encamp.home import Home

IMPORTED = (
    "asyncio",
    "ctypes",
    "encamp.agent.bait.carrying",
    "encamp.agent.commands.bait",
    "encamp.agent.commands.part",
    "encamp.agent.commands.requests",
    "encamp.describe.late",
    "encamp.guest.archive",
)

LONGEST_MESSAGE = 8192


def main() -> None:
    home, connection = Home(Path(sys.argv[1])), socket.socket(fileno=int(sys.argv[2]))
    os.environ["ENCAMP_HOME"] = str(home.root)
    for name in IMPORTED:
        importlib.import_module(name)
    _warm_up()
    # What is here now stays, and is shared with the children: nobody is to touch it again.
    gc.collect()
    gc.freeze()
    waking, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(woken)
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.register(waking, select.POLLIN)
    connection.send(b"ready")
    while True:
        for fd, _ in poll.poll():
            if fd == waking:
                with suppress(BlockingIOError):
                    os.read(waking, 4096)
                _reap(connection)
                continue
            wanted = connection.recv(LONGEST_MESSAGE)
            if not wanted:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                _carry(CommandDirectory(Path(os.fsdecode(wanted))), connection, waking, woken)
            connection.send(b"started %d" % pid)


def _warm_up() -> None:
    """What is slow the first time is done once, and not by each child anew."""
    import msgspec

    from encamp.describe.environments import DEFAULT, find_environment
    from encamp.door.questions import Exec
    from encamp.model.errors import EncampError
    from encamp.model.request import Request

    for kind in (Request, Exec):
        with suppress(msgspec.ValidationError):
            msgspec.convert({}, kind)
    with suppress(EncampError, OSError):
        find_environment(DEFAULT)


def _reap(connection: socket.socket) -> None:
    with suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            connection.send(b"ended %d" % pid)


def _carry(
    directory: CommandDirectory, connection: socket.socket, waking: int, woken: int
) -> NoReturn:
    """In the child: all that a carrier is started with, then its work."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (*DEFAULT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        connection.close()
        os.close(waking)
        os.close(woken)
        os.setsid()
        log = os.open(directory.log, LOG | os.O_CLOEXEC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ[MARK] = directory.id
        carry(directory)
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


if __name__ == "__main__":
    os.chdir("/")
    os.umask(0o077)
    main()
