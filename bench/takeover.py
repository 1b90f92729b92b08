"""How long a site is without a manager when the one that leads is killed, stopped or stuck."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml

from bench.ground import Ground
from bench.measure import Series, ratio, rounds
from bench.network import listens
from bench.processes import running, wait_until
from bench.report import Figure, Report, Table, format_number
from bench.site import ROOT, Enrolled, enrol, name_of, nats_server
from encamp.describe.site_file import SITE
from encamp.door.client import ask
from encamp.door.questions import AskStatus, IssueCommand, Status
from encamp.model.command import CommandRecord
from encamp.model.errors import EncampError
from tests.manager.store.postgres import postgresql

TITLE = "a site without its manager"

EXPLANATION = """
A site of 200 agents, with its store in PostgreSQL that waits for its disk, and two managers:
one leads, one stands by. The time is taken from the moment something is done to the one that leads
until a command for a host, tried again and again at the other's door, is written down. By then the
other has taken the store, read what is in it, taken the place of the former on the bus, and has
been introduced to all hosts.

*Killed* is SIGKILL; *stopped* is SIGTERM, and counts from the signal; *stuck* is SIGSTOP: nothing
tells the database or the bus that it does not live any more, so its tenure has to run out first,
which takes `presence.silence`, 6 seconds. *Started anew* is what a site without a second manager
has at best: the only one is killed and started again at once.
"""
AGENTS = 200
PATIENCE = 120.0
AGAIN = 0.002
"""Seconds between two tries."""
QUESTION = IssueCommand(hosts=(name_of(0),), name="agent.ping")


class Managers:
    """Of one site, each with a home of its own."""

    def __init__(self, directory: Path, config: Path) -> None:
        self._directory = directory
        self._config = config
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._held: dict[str, ExitStack] = {}

    def start(self, name: str) -> None:
        environment = {
            "ENCAMP_SITE_CONFIG": str(self._config),
            "ENCAMP_HOME": str(self._directory / name),
            "PYTHONPATH": str(ROOT),
        }
        held = self._held[name] = ExitStack()
        words = [sys.executable, "-m", "encamp.cli.main", "manager"]
        log = self._directory / f"{name}.log"
        self.processes[name] = held.enter_context(running(words, log, environment))

    def end(self, name: str) -> None:
        self._held.pop(name).close()

    def end_all(self) -> None:
        for name in list(self._held):
            self.end(name)

    def status(self, name: str) -> Status | None:
        try:
            return next(iter(ask(self._door(name), AskStatus(), Status)))
        except EncampError:
            return None

    def leads(self, name: str, *, standing_by: int) -> bool:
        found = self.status(name)
        if found is None or not found.leads:
            return False
        ready = [one for one in found.leadership.standing_by if not one.trouble]
        return found.hosts.get("joined") == AGENTS and len(ready) == standing_by

    def until_accepted(self, name: str) -> None:
        """A command, at this one's door."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                list(ask(self._door(name), QUESTION, CommandRecord))
                return
            except EncampError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(AGAIN)

    def _door(self, name: str) -> Path:
        return self._directory / name / "manager.sock"


@contextmanager
def _site(directory: Path, enrolled: Enrolled) -> Iterator[Managers]:
    directory.mkdir(parents=True)
    config = enrolled.config
    with postgresql(fsync=True) as server, server.database() as url, ExitStack() as held:
        described = yaml.safe_load((config / SITE).read_text()) | {"store": url}
        (config / SITE).write_text(yaml.safe_dump(described))
        words: list[str | Path] = [nats_server(), "-c", config / "nats-server.conf"]
        held.enter_context(running(words, directory / "server.log"))
        wait_until("The server of the bus did not listen", lambda: listens(enrolled.port))
        managers = Managers(directory, config)
        held.callback(managers.end_all)
        swarm = [sys.executable, "-m", "bench.swarm", "0", str(AGENTS), "100"]
        environment = {"ENCAMP_SITE_CONFIG": str(config), "PYTHONPATH": str(ROOT)}
        held.enter_context(running(swarm, directory / "swarm.log", environment, grace=0))
        yield managers


def measure(ground: Ground, *, quick: bool) -> Report:
    many, few = (2, 1) if quick else (30, 5)
    killed = Series("killed: until a command is accepted", "ms")
    stopped = Series("stopped: until a command is accepted", "ms")
    stuck = Series("stuck: until a command is accepted", "ms")
    anew = Series("started anew: until a command is accepted", "ms")
    with _site(ground.scratch / "site", enrol(ground.scratch / "config", AGENTS)) as managers:
        managers.start("one")
        for _ in rounds("takeover, alone", many):
            wait_until("The manager did not lead", lambda: managers.leads("one", standing_by=0))
            _start_anew(managers, anew)
        leader, other = "one", "two"
        managers.start(other)
        for number in rounds("takeover", many):
            for series, how in ((killed, _kill), (stopped, _stop), (stuck, _stick)):
                if series is stuck and number >= few:
                    continue
                _wait_until_settled(managers, leader)
                how(managers, leader, other, series)
                leader, other = other, leader
    all_of_them = [killed, stopped, stuck, anew]
    return Report(
        figures=[
            Figure("killed / started anew", ratio(killed, anew)),
            Figure("stopped / started anew", ratio(stopped, anew)),
            Figure("killed: until a command is accepted", killed.median / 1000, "s"),
            Figure("stuck: until a command is accepted", stuck.median / 1000, "s"),
        ],
        background=all_of_them,
        tables=[Table(("what", "fastest", "9 of 10 within", "slowest"), _spread(all_of_them))],
    )


def _wait_until_settled(managers: Managers, leader: str) -> None:
    wait_until(
        "The managers did not settle", lambda: managers.leads(leader, standing_by=1), PATIENCE
    )


def _start_anew(managers: Managers, series: Series) -> None:
    began = time.perf_counter()
    managers.processes["one"].kill()
    managers.end("one")
    managers.start("one")
    managers.until_accepted("one")
    series.add((time.perf_counter() - began) * 1000)


def _kill(managers: Managers, leader: str, other: str, series: Series) -> None:
    began = time.perf_counter()
    managers.processes[leader].kill()
    managers.until_accepted(other)
    series.add((time.perf_counter() - began) * 1000)
    managers.end(leader)
    managers.start(leader)


def _stop(managers: Managers, leader: str, other: str, series: Series) -> None:
    began = time.perf_counter()
    managers.processes[leader].terminate()
    managers.until_accepted(other)
    series.add((time.perf_counter() - began) * 1000)
    managers.end(leader)
    managers.start(leader)


def _stick(managers: Managers, leader: str, other: str, series: Series) -> None:
    began = time.perf_counter()
    os.kill(managers.processes[leader].pid, signal.SIGSTOP)
    try:
        managers.until_accepted(other)
        series.add((time.perf_counter() - began) * 1000)
    finally:
        os.kill(managers.processes[leader].pid, signal.SIGCONT)


def _spread(found: list[Series]) -> list[tuple[str, ...]]:
    rows = []
    for series in found:
        values = series.values
        most = (
            statistics.quantiles(values, n=10, method="inclusive")[-1]
            if len(values) > 1
            else values[0]
        )
        shown = (format_number(value) + " ms" for value in (min(values), most, max(values)))
        rows.append((series.name, *shown))
    return rows
