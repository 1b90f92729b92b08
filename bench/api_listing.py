"""What it costs the manager to list ten thousand machines over HTTP."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec

from bench.ground import Ground
from bench.measure import Series, paired_ratio, rounds
from bench.report import Figure, Goal, Report

TITLE = "ten thousand machines, listed over HTTP"

EXPLANATION = """
A manager in a process of its own has 100 hosts with 100 machines each. Over one connection on the
loopback, all of them are asked for in one page (`GET /v1/machines?limit=10000`), with a token, as
any program does it. What that costs is the processor's time of the whole manager, the kernel's for
sending included; it is compared with what the same process needs for nothing but turning the same
list of records into JSON. Nothing is kept from one call to the next: each is made of what the
manager knows at that moment. Both are measured in turns, in blocks of calls.
"""

MACHINES = 10_000
BLOCK = 10


class Manager:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address, self.token = self._line().split()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def asked(self, question: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        return float(self._line())


@contextmanager
def manager() -> Iterator[Manager]:
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "bench.api_manager", home]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        ) as process:
            try:
                yield Manager(process)
            finally:
                process.terminate()


def measure(ground: Ground, *, quick: bool) -> Report:
    listing = Series("listing over HTTP", "ms of processor")
    encoding = Series("encoding alone", "ms of processor")
    with (
        manager() as asked,
        httpx.Client(
            base_url=asked.address, headers={"Authorization": f"Bearer {asked.token}"}
        ) as client,
    ):
        response = client.get("/v1/machines", params={"limit": MACHINES})
        for _ in rounds("api_listing", 3 if quick else 20):
            before = asked.asked("cpu")
            for _ in range(BLOCK):
                response = client.get("/v1/machines", params={"limit": MACHINES})
            listing.add((asked.asked("cpu") - before) / BLOCK * 1000)
            encoding.add(asked.asked(f"encode {BLOCK}") / BLOCK * 1000)
            assert len(msgspec.json.decode(response.content)["items"]) == MACHINES
    return Report(
        figures=[
            Figure(
                "listing / encoding alone",
                paired_ratio(listing, encoding),
                goal=(Goal.AT_MOST, 2.0),
            ),
            Figure("a page of 10,000 machines", len(response.content) / (1 << 20), "MiB"),
        ],
        background=[listing, encoding],
    )
