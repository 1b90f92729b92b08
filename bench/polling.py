"""A manager that polls its hosts, watched from outside for a while."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import psutil

from bench.measure import ImpossibleError
from bench.processes import held, processor_seconds
from bench.site import Running


@dataclass
class Point:
    """What a manager did in one window, with so many clients."""

    clients: int
    replies: float
    """In a second."""
    processor: float
    """Of one processor: the manager's process,"""
    server: float
    """and the server of the bus."""
    resident: int
    virtual: int
    received: list[float]
    """kB in each second."""
    sent: float
    """kB in a second."""

    @property
    def network(self) -> float:
        return statistics.fmean(self.received)

    @property
    def peak(self) -> float:
        return max(self.received)


def watched(running: Running, clients: int, window: float) -> Point:
    """Looks every second, and lets the manager be otherwise."""
    line, manager, server = running.line(), running.manager.pid, running.server.pid
    replies = running.status().messages
    processor, served = processor_seconds(manager), processor_seconds(server)
    first = last = line.carried()
    received = []
    started = time.monotonic()
    for second in range(1, round(window) + 1):
        time.sleep(max(0.0, started + second - time.monotonic()))
        now = line.carried()
        received.append((now - last).received / 1000)
        last = now
    seconds = time.monotonic() - started
    processor, served = processor_seconds(manager) - processor, processor_seconds(server) - served
    status, memory = running.status(), held(manager)
    if status.hosts["joined"] != clients:
        raise ImpossibleError(f"only {status.hosts['joined']} of {clients} stayed joined.")
    return Point(
        clients=clients,
        replies=(status.messages - replies) / seconds,
        processor=processor / seconds,
        server=served / seconds,
        resident=memory.resident,
        virtual=memory.virtual,
        received=received,
        sent=(last - first).sent / 1000 / seconds,
    )


def strain(running: Running, seconds: float = 10.0) -> str:
    """Who uses the processors right now: the end of a sentence."""
    pids = running.manager.pid, running.server.pid
    before = [*map(processor_seconds, pids), _busy()]
    time.sleep(seconds)
    after = [*map(processor_seconds, pids), _busy()]
    manager, server, everything = (
        (new - old) / seconds for new, old in zip(after, before, strict=True)
    )
    return (
        f"the manager uses {manager:.0%} of a processor, the server {server:.0%}, and everything"
        f" with the clients {everything:.0%} of {psutil.cpu_count()}"
    )


def _busy() -> float:
    """Seconds that the machine's processors have not been idle."""
    times = psutil.cpu_times()
    return float(sum(times[:8]) - times.idle - times.iowait)
