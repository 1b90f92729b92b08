"""A network of a test's own: a namespace with a bridge that machines can be on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

BRIDGE = "wire0"
HOST = "10.97.3.1"
"""What has this address is the host, on the bridge."""

SETTINGS = f"""
bridge:
  name: {BRIDGE}
  addresses: 10.97.3.100-10.97.3.101/24
  gateway: {HOST}
  hosts: {{controller: {HOST}}}
"""

MAKE = f"""
set -e
ip link set lo up
ip link add {BRIDGE} type bridge
ip addr add {HOST}/24 dev {BRIDGE}
ip link set {BRIDGE} up
echo ready
cat
"""


class Wire:
    def __init__(self, pid: int) -> None:
        self.namespace = Path(f"/proc/{pid}/ns/net")

    def inside(self, words: Sequence[str | Path]) -> list[str]:
        """A command line that does it there."""
        return ["nsenter", f"--net={self.namespace}", *map(str, words)]

    def run(self, *words: str | Path) -> str:
        done = subprocess.run(
            self.inside(words), capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout

    def taps(self) -> list[str]:
        """The wires of machines that there are now."""
        lines = self.run("ip", "-br", "link").splitlines()
        return sorted(line.split()[0] for line in lines if line.startswith("encamp-"))


@contextmanager
def wire() -> Iterator[Wire]:
    """Gone when everybody has left it, whatever happens to the test."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", MAKE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"ready\n"
        yield Wire(holder.pid)
    finally:
        holder.stdin.close()
        holder.wait(timeout=60)
        holder.stdout.close()
