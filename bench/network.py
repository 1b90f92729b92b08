"""Ports on this machine, and what a process sends and receives, as the kernel counts it."""

from __future__ import annotations

import re
import socket
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from encamp import programs

_RECEIVED = re.compile(r"\bbytes_received:(\d+)")
_SENT = re.compile(r"\bbytes_acked:(\d+)")


@dataclass
class Carried:
    """Bytes of content, without the headers of TCP and below."""

    received: int
    sent: int

    def __sub__(self, other: Carried) -> Carried:
        return Carried(self.received - other.received, self.sent - other.sent)


class Line:
    """The connections of a process to a port."""

    def __init__(self, pid: int, port: int) -> None:
        found = psutil.Process(pid).net_connections("tcp")
        own = [one.laddr.port for one in found if one.raddr[1:] == (port,)]
        self._filter = [
            f"dport = :{port} and ( {' or '.join(f'sport = :{each}' for each in own)} )"
        ]
        self._program = programs.find("ss")

    def carried(self) -> Carried:
        """Since the connections were opened."""
        command: list[str | Path] = [self._program, "-tinH", *self._filter]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return Carried(sum(map(int, _RECEIVED.findall(said))), sum(map(int, _SENT.findall(said))))


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
