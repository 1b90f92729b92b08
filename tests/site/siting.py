"""A whole site of real daemons on this machine: a NATS server, a manager, agents."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from encamp.core.actions import Judged
from encamp.door.client import ask
from encamp.door.questions import AskCommands, AskEvents, AskHosts, AskTriggerLog, Question
from encamp.model.command import CommandRecord
from encamp.model.errors import Code, EncampError
from encamp.model.event import Event
from encamp.model.host import Host

root_only = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may point to another site's directory"
)

ENCAMP = Path(sys.executable).with_name("encamp")
PATIENCE = 60.0
"""Seconds after which what was waited for will not come about any more."""

QUICK = """
presence:
  interval: 0.5s
  silence: 10s
"""
"""That an agent was killed is noticed sooner than usual; one that is only kept from giving signs of
life, by all the other tests for example, is not taken for a lost one."""


class Daemon:
    """A process that can be killed and started again."""

    def __init__(
        self, command: Sequence[str | Path], environment: dict[str, str], log: Path
    ) -> None:
        self.command = [str(word) for word in command]
        self.environment = environment
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """Without any chance to say goodbye."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end, and return how it did."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(timeout=PATIENCE)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            try:
                self.stop()
            except subprocess.TimeoutExpired:
                self.kill()
                raise

    def said(self) -> str:
        return self.log.read_text(errors="replace")


class RunningSite:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.address = f"127.0.0.1:{free_port()}"
        """Of the bus."""
        self.config = root / "manager"
        self.home = root / "manager-home"
        self.daemons: dict[str, Daemon] = {}
        self.homes: dict[str, Path] = {}

    @property
    def environment(self) -> dict[str, str]:
        """What the manager, and the command line on its host, are told."""
        return {
            "ENCAMP_HOME": str(self.home),
            "ENCAMP_SITE_CONFIG": str(self.config),
            "ENCAMP_USER_CONFIG": str(self.root / "nowhere"),
            "ENCAMP_QUIET": "1",
            "ENCAMP_DEBUG": "1",
            "COLUMNS": "200",
        }

    def __call__(
        self, *words: str | Path, check: bool = True, input: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """The command line on the manager's host."""
        done = subprocess.run(
            [ENCAMP, *words],
            env={**os.environ, **self.environment, **variables},
            input=input,
            capture_output=True,
            text=True,
            timeout=PATIENCE * 2,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def ask(self, *words: str) -> Any:
        """What a command prints as JSON."""
        return json.loads(self(*words, "--json").stdout)

    # ── setting up ───────────────────────────────────────────────────────────────────────────────

    def set_up(self, agents: Sequence[str], settings: str) -> None:
        self("site", "init", self.config, "--bus", self.address)
        with open(self.config / "site.yaml", "a") as file:
            file.write(settings)
        server = shutil.which("nats-server", path="/usr/sbin:/usr/bin") or "nats-server"
        self.add_daemon("nats", [server, "-c", self.config / "nats-server.conf"], {})
        self.add_daemon("manager", [ENCAMP, "manager", "--verbose"], self.environment)
        for name in agents:
            self.add_agent(name)

    def add_daemon(self, name: str, command: Sequence[str | Path], more: dict[str, str]) -> Daemon:
        daemon = Daemon(command, more, self.root / f"{name}.log")
        self.daemons[name] = daemon
        return daemon

    def add_agent(self, name: str, home: Path | None = None) -> Daemon:
        """As an administrator does it: one secret, one command."""
        secret = self("site", "add", name, "--group", "workers", "--directory", self.config).stdout
        return self.join_agent(name, secret, home)

    def join_agent(self, name: str, secret: str, home: Path | None = None) -> Daemon:
        """On its own host."""
        config = self.root / name
        self("site", "join", "-", input=secret, ENCAMP_SITE_CONFIG=str(config))
        self.homes[name] = home or self.root / f"{name}-home"
        environment = {
            **self.environment,
            "ENCAMP_HOME": str(self.homes[name]),
            "ENCAMP_SITE_CONFIG": str(config),
        }
        return self.add_daemon(name, [ENCAMP, "agent", "--verbose"], environment)

    def start(self, *names: str) -> None:
        for name in names or tuple(self.daemons):
            self.daemons[name].start()

    # ── watching ─────────────────────────────────────────────────────────────────────────────────

    def at_door(self, question: Question, *expected: type) -> list[Any]:
        """Asked in this process: what is waited for is looked at often."""
        try:
            answers: list[Any] = list(ask(self.home / "manager.sock", question, *expected))
        except EncampError as error:
            if error.code is not Code.UNREACHABLE:
                raise
            return []
        return msgspec.to_builtins(answers)  # type: ignore[no-any-return]

    def hosts(self) -> dict[str, Any]:
        return {host["name"]: host for host in self.at_door(AskHosts(), Host)}

    def wait_for(self, what: str, true: Callable[[], Any]) -> Any:
        """Until it comes about; the logs of all daemons, if it does not."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = true()
            if found:
                return found
            time.sleep(0.05)
        logs = "\n".join(
            f"── {name}\n{daemon.said()[-3000:]}" for name, daemon in self.daemons.items()
        )
        raise AssertionError(f"Waited in vain: {what}\n{logs}")

    def wait_for_hosts(self, *names: str, presence: str = "joined") -> None:
        self.wait_for(
            f"{names} {presence}",
            lambda: [self.presences().get(name) for name in names] == [presence] * len(names),
        )

    def presences(self) -> dict[str, str]:
        return {name: host["presence"] for name, host in self.hosts().items()}

    def commands(self) -> dict[str, Any]:
        return {record["id"]: record for record in self.at_door(AskCommands(), CommandRecord)}

    def events(self, kind: str = "") -> list[Any]:
        return [e for e in self.at_door(AskEvents(), Event) if kind in ("", e["kind"])]

    def judged(self, trigger: str) -> list[Any]:
        return self.at_door(AskTriggerLog(name=trigger), Judged)

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def processes(self) -> list[str]:
        """Everything that works for this site: daemons, commands, machines."""
        found = []
        for process in psutil.process_iter():
            try:
                words = [*process.cmdline(), process.cwd()]
                variables = process.environ().get("ENCAMP_HOME", "")
            except psutil.Error:
                continue
            if process.pid != os.getpid() and any(
                f"{self.root}/" in f"{word}/" for word in (*words, variables)
            ):
                found.append(f"{process.pid}: {' '.join(words)}")
        return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_site(
    root: Path,
    agents: Sequence[str] = ("node1",),
    settings: str = QUICK,
    *,
    start: bool = True,
    host: str = "127.0.0.1",
) -> Iterator[RunningSite]:
    """A site with these agents, all joined; nothing of it is left afterwards. `host`: where its bus
    listens."""
    site = RunningSite(root)
    site.address = site.address.replace("127.0.0.1", host)
    try:
        site.set_up(agents, settings)
        if start:
            site.start()
            site.wait_for_hosts(*agents)
        yield site
    finally:
        for name in (*agents, *reversed(list(site.daemons))):
            site.daemons[name].end()
        # A carrier that waited for a command ends a moment after its agent.
        end = time.monotonic() + PATIENCE
        while (left := site.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        for line in left:
            with suppress(ProcessLookupError):
                os.kill(int(line.split(":")[0]), signal.SIGKILL)
    assert left == [], left
