"""Hosts that share one machine: each with a name, an address, a file tree and a /run of its own.

They are namespaces, on a bridge in a namespace around them all, in which process numbers are their
own, too: when its first process ends, the kernel ends everything in there, whoever started it. That
process ends when its input does, thus also when whoever keeps this was killed.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from encamp.batch.gridengine.host import PATIENCE, Host, child_of, wait_until
from encamp.model.errors import Code, EncampError
from encamp.programs import find

FIRST = (
    "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN);"
    "os.write(1, b'.'); sys.stdin.read()"
)
"""What the first process does: it lets those rest that nobody else asks after, and waits."""
NETWORK = "10.99.0"

PRIVATE_RUN = """
mount -t tmpfs -o mode=755 run /run
mkdir -m 755 /run/encamp
mkdir -m 1777 /run/lock /run/scratch
"""


class Enclosure:
    """The namespace around the hosts, and them. The first host is where the bridge is."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.outer: subprocess.Popen[bytes] | None = None
        self.names: dict[str, str] = {}
        self.hosts: list[Host] = []

    @property
    def journal(self) -> Path:
        return self.directory / "first-process"

    def begin(self, name: str, others: Sequence[str], prepare: str = "") -> None:
        """`prepare`: a script that is run in the file tree that all hosts begin with."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.clear_up()
        self.names = {name: f"{NETWORK}.1"}
        self.names |= {other: f"{NETWORK}.{10 + n}" for n, other in enumerate(others, 1)}
        lines = [f"{address} {name}" for name, address in self.names.items()]
        (self.directory / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        kinds = ("--pid", "--fork", "--mount-proc", "--mount", "--net", "--uts")
        self.outer = subprocess.Popen(
            [str(find("unshare")), *kinds, sys.executable, "-I", "-S", "-c", FIRST],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self.outer.stdout is not None
        if not self.outer.stdout.read(1):
            raise EncampError(
                Code.NOT_PERMITTED,
                "This machine does not let us make namespaces.",
                "It takes root, and a kernel that has them.",
            )
        first = child_of(self.outer)
        self.journal.write_text(f"{first} {psutil.Process(first).create_time()}")
        here = Host(name, self.names[name], first)
        self.hosts.append(here)
        hosts = shlex.quote(str(self.directory / "hosts"))
        script = f"""
            hostname {name}
            mount --bind {hosts} /etc/hosts
            ip link set lo up
            ip link add encamp type bridge
            ip address add {here.address}/24 dev encamp
            ip link set encamp up
        """
        here.run(["sh", "-euc", script + PRIVATE_RUN + prepare], directory="/")
        for other in others:
            self.add(other)

    def add(self, name: str) -> Host:
        """Another host, on the bridge."""
        first = self.hosts[0]
        if name not in self.names:
            last = max(int(address.rpartition(".")[2]) for address in self.names.values())
            self.names[name] = f"{NETWORK}.{last + 1}"
            with open(self.directory / "hosts", "a") as file:
                file.write(f"{self.names[name]} {name}\n")
        kinds = ("--mount", "--net", "--uts")
        ready = self.directory / f"ready-{name}"
        with suppress(FileNotFoundError):
            ready.unlink()
        words = ["sh", "-c", f": > {shlex.quote(str(ready))}; exec sleep infinity"]
        keeper = first.start([find("unshare"), *kinds, *words])
        wait_until(ready.exists, f"the namespaces of {name}")
        ready.unlink()
        host = Host(name, self.names[name], keeper.pid)
        number = host.address.rpartition(".")[2]
        link = ["ip", "link", "add", f"port{number}", "master", "encamp", "type", "veth"]
        entry = ["nsenter", "--target", str(first.keeper), "--net", "--"]
        link += ["peer", "name", "eth0", "netns", str(host.keeper)]
        # That of a host of this name that was lost goes away by itself, but not at once.
        wait_until(lambda: succeeds([*entry, *link]), f"the network of {name}")
        succeeds([*entry, "ip", "link", "set", f"port{number}", "up"])
        script = f"""
            hostname {name}
            ip link set lo up
            ip address add {host.address}/24 dev eth0
            ip link set eth0 up
        """
        host.run(["sh", "-euc", script + PRIVATE_RUN], directory="/")
        self.hosts.append(host)
        self.hosts.sort(key=lambda each: int(each.address.rpartition(".")[2]))
        return host

    def remove(self, host: Host) -> None:
        """A host that is lost, with everything that runs there."""
        space = Path(f"/proc/{host.keeper}/ns/net").readlink()
        for process in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if Path(f"/proc/{process.pid}/ns/net").readlink() == space:
                    process.kill()
        for started in host.processes:
            started.outer.wait(PATIENCE)
        self.hosts.remove(host)

    def end(self) -> None:
        self.clear_up()
        if self.outer is not None:
            assert self.outer.stdin is not None
            assert self.outer.stdout is not None
            self.outer.stdin.close()
            self.outer.wait(PATIENCE)
            self.outer.stdout.close()
            self.outer = None
        for host in self.hosts:
            for process in host.processes:
                process.outer.wait(PATIENCE)
        self.hosts.clear()

    def clear_up(self) -> None:
        """End what stands in this directory, be it of one who was killed."""
        with suppress(FileNotFoundError):
            pid, began = self.journal.read_text().split()
            with suppress(psutil.NoSuchProcess):
                first = psutil.Process(int(pid))
                if first.create_time() == float(began):
                    first.kill()
                    wait_until(lambda: not first.is_running() or is_dead(first), "what stood there")
            self.journal.unlink()


def succeeds(command: Sequence[str]) -> bool:
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
    return done.returncode == 0


def is_dead(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    return True
