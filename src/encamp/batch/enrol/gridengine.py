"""Grid Engine's execution hosts that are machines. They are in a queue of their own, which has no
starter: what is sent there runs there. The verifier of jobs has those that name such an environment
(`-l env=NAME`) ask for what these hosts force jobs to ask for, by that name, so that no others
come."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import ClassVar

from encamp.batch.enrol.accounts import PLACE, accounts, joining
from encamp.batch.enrol.workers import Seen, Workers, listens, refused, taken
from encamp.batch.gridengine.answers import (
    ANYWHERE,
    FOR_NODES,
    Listed,
    read_jobs,
    read_states,
    read_values,
)
from encamp.batch.gridengine.calls import Calls
from encamp.batch.gridengine.cell import HOST, with_values
from encamp.model.batch import BatchSettings
from encamp.model.environment import Context, Environment
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine
from encamp.model.recipe import AddedFile

QUEUE, GROUP = "encamp.q", "@encamp"
CELL_FILES = ("act_qmaster", "bootstrap", "host_aliases")
"""What an execution host must know before it can ask the master."""
MANY = 9999
PORT = "6445"
"""Where execution hosts listen, unless they are told otherwise."""
THERE, NO_QUEUE = "already exists", "invalid queue"


class GridEngineWorkers(Workers):
    system: ClassVar[str] = "gridengine"

    def __init__(self, settings: BatchSettings) -> None:
        super().__init__(settings)
        self._call = Calls(settings.programs)
        self._queue = self.setting("node_queue", QUEUE)

    def context(self, machine: Machine, environment: Environment) -> Context:
        common = Path(self._call.root) / self._call.cell / "common"
        files = [
            AddedFile(path=f"{PLACE}/cell/{name}", source=str(common / name), mode=0o644)
            for name in CELL_FILES
            if (common / name).is_file()
        ]
        bootstrap = dict(line.split(maxsplit=1) for line in _lines(common / "bootstrap"))
        shown = self._call("qconf", "-sconf", purpose="asking Grid Engine for its configuration")
        spool = next(read_values(shown)).get("execd_spool_dir", "/var/spool/gridengine/execd")
        variables = self._call.variables()
        words = {
            "SGE_ROOT": self._call.root,
            "SGE_CELL": self._call.cell,
            "SGE_ARCH": "lx-amd64" if os.uname().machine == "x86_64" else "lx-arm64",
            "SGE_QMASTER_PORT": variables.get("SGE_QMASTER_PORT", "6444"),
            "SGE_EXECD_PORT": variables.get("SGE_EXECD_PORT", PORT),
            "ADMINISTRATOR": bootstrap.get("admin_user", "sgeadmin").strip(),
            "PLACES": spool,
        }
        run = joining("join-gridengine.sh", words)
        return Context(files=(*files, *accounts()), run=(run,))

    def check(self, name: str, address: str | None) -> None:
        seen = self.look([name]).get(name)
        if seen is None:
            return
        shown = self._call("qconf", "-se", name, purpose=f"asking Grid Engine for host {name}")
        offered = next(read_values(shown)).get("complex_values", "").split(",")
        if not any(offer.startswith(f"{FOR_NODES}=") for offer in offered):
            raise taken(name, "Grid Engine", "it is a host of the site's, and no machine's")
        if not seen.up or address is None:
            return
        # Grid Engine believes for minutes that a machine is there that was killed.
        answers = listens(address, int(self._call.variables().get("SGE_EXECD_PORT", PORT)))
        if answers is True or (answers is None and seen.jobs):
            raise taken(name, "Grid Engine", f"it answers, at {address}")

    def register(self, machine: Machine, environment: Environment) -> None:
        if machine.name in self.look([machine.name]):
            self.lost(machine.name)
        offered = ",".join([*offers(environment.name), f"slots={machine.size.cpus}"])
        self._check_complexes()
        self._have_queue()
        self._tell("qconf", "-ah", machine.name)
        described = with_values(HOST.format(name=machine.name), {"complex_values": offered})
        self._described("-Ae", described)
        self._tell("qconf", "-aattr", "hostgroup", "hostlist", machine.name, GROUP)

    def _check_complexes(self) -> None:
        known = self._complexes()
        if missing := [name for name in ("env", FOR_NODES) if name not in known]:
            raise EncampError(
                Code.CONFIGURATION,
                f"Jobs of Grid Engine's cannot ask for worker nodes: there is no complex"
                f" '{missing[0]}'.",
                "'encamp batch install gridengine' adds it, also if it was run before.",
            )

    def _complexes(self) -> set[str]:
        said = self._call("qconf", "-sc", purpose="asking Grid Engine what jobs may ask for")
        return {line.split()[0] for line in said.splitlines() if line.strip()}

    def _have_queue(self) -> None:
        """Made when it is needed for the first time; an administrator may change it."""
        groups = self._known("-shgrpl", "host groups")
        if GROUP not in groups:
            self._described("-Ahgrp", f"group_name {GROUP}\nhostlist NONE\n")
        if self._queue in self._known("-sql", "queues"):
            return
        parallel = " ".join(self._known("-spl", "parallel environments")) or "NONE"
        template = self._call("qconf", "-sq", purpose="asking Grid Engine what a queue is")
        values = {
            "qname": self._queue,
            "hostlist": GROUP,
            "slots": str(MANY),
            "pe_list": parallel,
            "rerun": "TRUE",
            "load_thresholds": "NONE",
            "shell": "/bin/sh",
            "shell_start_mode": "unix_behavior",
        }
        self._described("-Aq", with_values(template, values))

    def _known(self, option: str, what: str) -> list[str]:
        try:
            return self._call("qconf", option, purpose=f"asking for Grid Engine's {what}").split()
        except EncampError as error:
            if error.transient or not error.detail.startswith("no "):
                raise
            return []

    # ── how they stand ───────────────────────────────────────────────────────────────────────────

    def look(self, nodes: Collection[str]) -> dict[str, Seen]:
        known = set(self._known("-sel", "execution hosts")).intersection(nodes)
        if not known:
            return {}
        listed = self._of_queue("qstat", "-f", "-xml")
        stated = read_states(listed) if listed else {}
        states = {name.partition("@")[2]: state for name, state in stated.items()}
        jobs: dict[str, int] = {}
        for job in self._running():
            host = job.queue.partition("@")[2]
            jobs[host] = jobs.get(host, 0) + 1
        return {
            name: Seen(
                up=name in states and not set(states[name]) & set("uEo"),
                jobs=jobs.get(name, 0),
                # Where there is no queue, nothing is sent.
                closed="d" in states.get(name, "d"),
            )
            for name in known
        }

    def _of_queue(self, *words: str) -> str:
        try:
            return self._call(*words, "-q", self._queue, purpose="asking for queues")
        except EncampError as error:
            if error.transient or error.detail:
                raise
            return ""  # It fails without a word where the queue has no host.

    def _running(self) -> list[Listed]:
        """Jobs at hosts, once for each host of a parallel one; suspended ones, too."""
        words = ("-xml", "-r", "-u", "*", "-s", "rs", "-g", "t")
        return list(read_jobs(self._call("qstat", *words, purpose="asking for jobs that run")))

    def send_on(self, nodes: Mapping[str, str]) -> None:
        """No job is sent that cannot run there; but hosts that have joined when none was forced to
        ask for them are told now."""
        said = self._of_queue("qselect", "-l", f"{FOR_NODES}=*") if nodes else ""
        lacking = nodes.keys() - {instance.partition("@")[2] for instance in said.split()}
        if not lacking or FOR_NODES not in self._complexes():
            return
        for node in sorted(lacking):
            for offer in offers(nodes[node]):
                self._tell("qconf", "-mattr", "exechost", "complex_values", offer, node)

    def close(self, node: str, reason: str) -> None:
        try:
            self._call("qmod", "-d", f"{self._queue}@{node}", purpose=f"closing node {node}")
        except EncampError as error:
            if NO_QUEUE not in error.detail:
                raise

    def remove(self, node: str) -> None:
        seen = self.look([node]).get(node)
        if seen is None:
            return
        self.close(node, "")
        # Asked after it was closed: nothing can come meanwhile.
        if (seen := self.look([node]).get(node)) is not None and seen.jobs:
            raise refused(node, "it has a job")
        self._forget(node)

    def lost(self, node: str) -> None:
        if node not in self._known("-sel", "execution hosts"):
            return
        self.close(node, "")
        for job in self._running():
            if job.queue.partition("@")[2] == node:
                self._tell("qmod", "-f", "-rj", f"{job.id}.{job.tasks}" if job.tasks else job.id)
        self._forget(node)

    def _forget(self, node: str) -> None:
        self._tell("qconf", "-ke", node)
        self._tell("qconf", "-dattr", "hostgroup", "hostlist", node, GROUP)
        self._tell("qconf", "-de", node)
        self._tell("qconf", "-dh", node)
        if node in self._known("-sel", "execution hosts"):
            raise refused(node, "Grid Engine still needs it")

    def _tell(self, *words: str) -> None:
        """What is so already is no mistake, and neither is what has gone."""
        try:
            self._call(*words, purpose="telling Grid Engine of a node")
        except EncampError as error:
            if error.transient or error.code is Code.NOT_PERMITTED:
                raise

    def _described(self, option: str, text: str) -> None:
        try:
            self._call.described(option, text)
        except EncampError as error:
            if THERE not in error.detail:
                raise


def offers(environment: str) -> tuple[str, ...]:
    """What hosts offer that jobs for this environment look for, and no others can do with."""
    return f"env={ANYWHERE}", f"{FOR_NODES}={environment}"


def _lines(path: Path) -> list[str]:
    lines = path.read_text(errors="replace").splitlines()
    return [line for line in lines if len(line.split()) > 1 and not line.startswith("#")]
