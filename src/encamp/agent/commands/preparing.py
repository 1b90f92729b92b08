"""The prepared process: python -m encamp.agent.commands.preparing HOME SOCKET

It has imported what commands of requests need, and does nothing but fork: each child is such a
command's carrier, begun a tenth of a second sooner than by a fresh interpreter, and as much on its
own. One of them, with its worker, is always made before there is a command for it. It says which
children have begun and which have ended, and ends when its agent does.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import NoReturn

from encamp.agent.commands.carry import carry
from encamp.agent.commands.directory import CommandDirectory
from encamp.agent.commands.family import MARK
from encamp.agent.commands.starting import DEFAULT, LOG
from encamp.agent.commands.working import LONGEST_PATH, Worker
from encamp.home import Home

IMPORTED = (
    "asyncio",
    "ctypes",
    "encamp.agent.bait.carrying",
    "encamp.agent.bait.hosting",
    "encamp.agent.commands.bait",
    "encamp.agent.commands.part",
    "encamp.agent.commands.requests",
    "encamp.describe.late",
    "encamp.guest.archive",
)

SOON = 0.3
"""Seconds after which another carrier is made to wait, so that this does not hold up the last."""

HEARD = b"."
DEAF = 5.0
"""Seconds after which a carrier that has said nothing (it may have been stopped) is given up.
Should it go on after all, the command's lock keeps it from being the second."""


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
    ours = (connection.fileno(), waking, woken)
    connection.send(b"ready")
    waiting: Waiting | None = None
    while True:
        ready = poll.poll(None if waiting is not None else SOON * 1000)
        if not ready:
            waiting = Waiting(ours)
        for fd, _ in ready:
            if fd == waking:
                with suppress(BlockingIOError):
                    os.read(waking, 4096)
                _reap(connection)
                continue
            wanted = connection.recv(LONGEST_PATH)
            if not wanted:
                os._exit(0)
            pid = _begun(wanted, waiting, ours)
            waiting = None
            connection.send(b"started %d" % pid)


class Waiting:
    """A carrier that waits to be told its command. `ours`: descriptors that it has no use for."""

    def __init__(self, ours: tuple[int, ...]) -> None:
        self._line, told = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            _carry(told, (*ours, self._line.fileno()))
        told.close()

    def tell(self, path: bytes) -> None:
        """Raises OSError if it is known to have ended while it waited."""
        self._line.sendall(path)

    def heard(self) -> bool:
        """Has it? What it was told may have come too late."""
        self._line.settimeout(DEAF)
        return self._line.recv(len(HEARD)) == HEARD

    def close(self) -> None:
        self._line.close()


def _begun(path: bytes, waiting: Waiting | None, ours: tuple[int, ...]) -> int:
    """Which process carries the command out that is written down there."""
    if waiting is not None:
        with closing(waiting), suppress(OSError):
            waiting.tell(path)
            if waiting.heard():
                return waiting.pid
    with closing(Waiting(ours)) as fresh:
        fresh.tell(path)
        return fresh.pid


def _warm_up() -> None:
    """What is slow the first time is done once, and not when somebody waits for it."""
    import asyncio

    import msgspec

    from encamp.agent.bait.errand import Errand
    from encamp.describe.environments import DEFAULT, find_environment
    from encamp.door.questions import Exec
    from encamp.model.errors import EncampError
    from encamp.model.request import Request

    for kind in (Request, Exec, Errand):
        with suppress(msgspec.ValidationError):
            msgspec.convert({}, kind)
    with suppress(EncampError, OSError):
        find_environment(DEFAULT)
    asyncio.run(asyncio.sleep(0))


def _prepare(told: socket.socket) -> None:
    """In the worker of one that waits."""
    # Nobody else holds it open: whoever tells it something knows whether it is there.
    told.close()
    # After a fork memory is slow to be written for the first time, too.
    _warm_up()


def _reap(connection: socket.socket) -> None:
    with suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            connection.send(b"ended %d" % pid)


def _carry(told: socket.socket, theirs: tuple[int, ...]) -> NoReturn:
    """In the child: all that a carrier is started with, then its work."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (*DEFAULT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for fd in theirs:
            os.close(fd)
        os.setsid()
        worker = Worker(prepare=lambda: _prepare(told))
        path = told.recv(LONGEST_PATH)
        if not path:
            os._exit(0)
        with told, suppress(OSError):  # who has made us only now does not listen
            told.sendall(HEARD, socket.MSG_NOSIGNAL)
        directory = CommandDirectory(Path(os.fsdecode(path)))
        log = os.open(directory.log, LOG | os.O_CLOEXEC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.environ[MARK] = directory.id
        carry(directory, worker)
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
