"""A site to measure: a NATS server, the manager as people start it, and many agents."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.measure import ImpossibleError
from bench.network import Line, free_ports, listens
from bench.processes import running, wait_until
from encamp.bus.server_file import Address
from encamp.describe.site_file import SITE
from encamp.door.client import ask
from encamp.door.questions import AskHosts, AskStatus, Status
from encamp.manager.enrolment import Enrolment
from encamp.model.errors import EncampError
from encamp.model.host import Host

ROOT = Path(__file__).parent.parent
A_PROCESS = 1250
"""Agents of a swarm in one process."""
JOINING = 300.0


@dataclass
class Running:
    """A site that is up."""

    directory: Path
    port: int
    server: subprocess.Popen[bytes]
    manager: subprocess.Popen[bytes]
    environment: Mapping[str, str]
    stack: ExitStack

    def status(self) -> Status:
        return next(iter(ask(self.directory / "door", AskStatus(), Status)))

    def reading(self, host: str, name: str) -> object:
        """What the manager knows of a property; None: nothing yet."""
        for found in ask(self.directory / "door", AskHosts(), Host):
            if found.name == host and name in found.readings:
                return found.readings[name].value
        return None

    def line(self) -> Line:
        return Line(self.manager.pid, self.port)

    def joined(self) -> int:
        return self.status().hosts.get("joined", 0)

    def grow(self, wanted: int, size: int) -> None:
        """Have agents join until there are so many; a process after the other, since all at once
        would take the processors of this one machine from each other."""
        for first in range(self.joined(), wanted, A_PROCESS):
            up_to = min(first + A_PROCESS, wanted)
            words = [str(first), str(up_to - first), str(size)]
            command = [sys.executable, "-m", "bench.swarm", *words]
            log = self.directory / f"swarm-{first}.log"
            self.stack.enter_context(running(command, log, self.environment, grace=0))
            self.wait_for(up_to)

    def wait_for(self, wanted: int) -> None:
        wait_until(f"{wanted} agents did not join", lambda: self.joined() == wanted, JOINING)

    def answers(self) -> bool:
        if self.manager.poll() is not None:
            said = (self.directory / "manager.log").read_text().strip()
            raise ImpossibleError(f"the manager ended: {said[-500:]}")
        try:
            return bool(self.status().instance)
        except EncampError:
            return False


@dataclass
class Enrolled:
    """What `encamp site init` writes for a site."""

    config: Path
    port: int


def enrol(config: Path, agents: int) -> Enrolled:
    """With credentials for so many agents of a swarm."""
    [port] = free_ports(1)
    names = [name_of(number) for number in range(agents)]
    Enrolment(config).init("bench", [Address("127.0.0.1", port)], names)
    return Enrolled(config, port)


@contextmanager
def site(
    directory: Path, enrolled: Enrolled, settings: Mapping[str, object] | None = None
) -> Iterator[Running]:
    """A site that has been set up so, with its server and manager; `site.yaml` says this, too."""
    directory.mkdir(parents=True)
    config, port = enrolled.config, enrolled.port
    before = (config / SITE).read_text()
    described = yaml.safe_load(before) | {"door": str(directory / "door"), **(settings or {})}
    (config / SITE).write_text(yaml.safe_dump(described))
    environment = {
        "ENCAMP_SITE_CONFIG": str(config),
        "ENCAMP_HOME": str(directory / "home"),
        "PYTHONPATH": str(ROOT),
    }
    with ExitStack() as stack:
        server = stack.enter_context(
            running([nats_server(), "-c", config / "nats-server.conf"], directory / "server.log")
        )
        wait_until("The server of the bus did not listen", lambda: listens(port))
        manager = stack.enter_context(
            running(
                [sys.executable, "-m", "encamp.cli.main", "manager"],
                directory / "manager.log",
                environment,
            )
        )
        found = Running(directory, port, server, manager, environment, stack)
        stack.callback((config / SITE).write_text, before)
        wait_until("The manager did not start", found.answers)
        yield found


def name_of(number: int) -> str:
    """Of a swarm's agent."""
    return f"node{number:05}"


def nats_server() -> str:
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.exists() else shutil.which("nats-server") or "nats-server"


def allow_connections(wanted: int) -> int:
    """Raise the number of files a process may have open, as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    able = min(wanted, hard) if hard != resource.RLIM_INFINITY else wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, able), hard))
    return max(soft, able)
