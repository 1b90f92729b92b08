"""Putting a machine where its job is: into the control groups of the job's starter, so that what
the batch system measures, limits and kills is the machine's process, too.

The process that carries the job out stays outside: what a batch system sends to all of a job is
meant for the job, which is told of it through its starter. It has given up the rights that this
needs, so a child of it keeps them.

That child has a second task. If the process that carries the job out is killed, nobody will hear
how the job ends, and it may be begun again elsewhere: so its machine is killed at once, also one
that could have served other jobs afterwards.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from encamp.agent.bait.choosing import GROUPS, control_groups
from encamp.machines.standing import standing

JOIN, LEAVE = b"j", b"l"

BECOMING = 3.0
"""Seconds in which a process that was started is seen to be a machine."""


def join(pid: int, groups: Sequence[tuple[str, str]]) -> None:
    """Put a process into control groups. One that refuses, or is not there, is left out: then the
    batch system does not count on it either."""
    for controllers, path in groups:
        for base in _mounted(controllers):
            with suppress(OSError):
                (base / path.lstrip("/") / "cgroup.procs").write_text(str(pid))
                break


def _mounted(controllers: str) -> list[Path]:
    """Where a hierarchy may be mounted."""
    if controllers == "":
        return [GROUPS / "unified", GROUPS]
    name = controllers.removeprefix("name=")
    return [GROUPS / name, *(GROUPS / one for one in name.split(","))]


class Groups:
    """The control groups of a job and those of the agent, between which machines are moved. Begun
    by a process without threads, that has root's rights. `stays`: the job's machine does not end
    with this process by itself."""

    def __init__(self, starter: int, owner: int, *, stays: bool = False) -> None:
        self._job = control_groups(starter)
        self._own = control_groups(os.getpid())
        self._owner = owner
        self._ours: socket.socket | None = None
        if self._job == self._own and not stays:
            return  # There is nothing to do.
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            ours.close()
            self._serve(its)
        its.close()
        self._ours = ours

    def take_in(self, machine: int) -> None:
        """A machine's process is this job's now."""
        self._tell(JOIN, machine)

    def leave(self, machine: int) -> None:
        """It is no longer: whatever becomes of this job does not concern it."""
        self._tell(LEAVE, machine)

    def _tell(self, what: bytes, pid: int) -> None:
        if self._ours is None:
            return
        with suppress(OSError):
            self._ours.settimeout(10.0)
            self._ours.send(what + str(pid).encode())
            self._ours.recv(1)

    def _serve(self, its: socket.socket) -> NoReturn:
        machine = -1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while said := its.recv(64):
                if machine >= 0:
                    os.close(machine)
                machine = self._change(said[:1], int(said[1:]))
                its.send(b"d")
        finally:
            # Whoever told us has ended.
            with suppress(OSError):
                if machine >= 0:
                    signal.pidfd_send_signal(machine, signal.SIGKILL)
            os._exit(0)

    def _change(self, what: bytes, pid: int) -> int:
        """Whose a process is from now on. If it is the job's: a descriptor of it, else -1. Nothing
        is done to any but machines of the owner's."""
        try:
            process = os.pidfd_open(pid)
        except OSError:
            return -1
        is_machine = self._is_machine(pid)
        if is_machine and self._job != self._own:
            join(pid, self._job if what == JOIN else self._own)
        if is_machine and what == JOIN:
            return process
        os.close(process)
        return -1

    def _is_machine(self, pid: int) -> bool:
        """While a process becomes another program, it cannot be told for a moment what it is."""
        end = time.monotonic() + BECOMING
        while not any(one.pid == pid and one.owner == self._owner for one in standing()):
            if time.monotonic() > end or not Path(f"/proc/{pid}").exists():
                return False
            time.sleep(0.01)
        return True
