"""A host of its own behind a cable that can be cut: a network namespace and a veth pair."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


class Cable:
    def __init__(self, number: int) -> None:
        self.namespace = f"encamp-test-{number}"
        self.here_end, self.there_end = f"ecth{number}", f"ectt{number}"
        self.here = f"10.213.{number % 250}.1"
        self.there = f"10.213.{number % 250}.2"

    @property
    def prefix(self) -> list[str]:
        """What runs a program behind the cable."""
        return ["ip", "netns", "exec", self.namespace]

    def cut(self) -> None:
        self._there("link", "set", self.there_end, "down")

    def mend(self) -> None:
        self._there("link", "set", self.there_end, "up")

    def lay(self) -> None:
        _ip("netns", "add", self.namespace)
        _ip("link", "add", self.here_end, "type", "veth", "peer", "name", self.there_end)
        _ip("link", "set", self.there_end, "netns", self.namespace)
        _ip("address", "add", f"{self.here}/24", "dev", self.here_end)
        _ip("link", "set", self.here_end, "up")
        self._there("address", "add", f"{self.there}/24", "dev", self.there_end)
        self._there("link", "set", "lo", "up")
        self.mend()

    def remove(self) -> None:
        # Without its namespace, one end is gone, and with it the other.
        subprocess.run(["ip", "link", "del", self.here_end], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", self.namespace], capture_output=True, check=False)

    def _there(self, *words: str) -> None:
        _ip("-n", self.namespace, *words)


@contextmanager
def cable() -> Iterator[Cable]:
    laid = Cable(os.getpid() % 10_000)
    try:
        laid.lay()
        yield laid
    finally:
        laid.remove()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
