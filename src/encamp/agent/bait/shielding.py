"""Signals that are not for the process that carries a job out. A batch system may send one to all
that is the job's, and this process is: it carries the job's group. The job itself hears of it from
its starter. Only who has begun this process may have it stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

STOP = signal.SIGTERM
"""What a command is told that is to stop."""
OTHERS = {
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGALRM),
    *(signal.SIGVTALRM, signal.SIGPROF, signal.SIGPOLL, signal.SIGPWR, signal.SIGXCPU),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
}


@contextmanager
def shielded(parent: int) -> Iterator[None]:
    """From the beginning on, and until this process ends: it becomes the job's in between, as long
    as it has no other thread. `parent`: who has begun it."""
    for number in OTHERS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {STOP})
    yield
    threading.Thread(target=_pass_on, args=[parent], name="shield", daemon=True).start()


def _pass_on(parent: int) -> None:
    """Who the kernel says has sent it is not told to a handler."""
    while True:
        told = signal.sigwaitinfo({STOP})
        # Without a handler it is too late to stop: what was done is being told.
        if told.si_pid == parent and callable(signal.getsignal(STOP)):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {STOP})
            signal.raise_signal(STOP)
            signal.pthread_sigmask(signal.SIG_BLOCK, {STOP})
