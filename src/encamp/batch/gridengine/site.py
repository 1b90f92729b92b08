"""A private Grid Engine site on one machine: a master and execution hosts, real daemons all.

    with GridEngineSite(directory, hosts=2) as site:
        site.run_as("alice", ["qsub", "-b", "y", "hostname"])

Each host is a set of namespaces with its own name, address and /run (thus its own agent, if
somebody starts one there), and the cell lies where the packages would have it. Nothing of this is
seen outside, and nothing of it is left afterwards, also if this process was killed.
"""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from encamp.batch.gridengine import cell
from encamp.batch.gridengine.host import Host, Process, wait_until
from encamp.batch.gridengine.namespaces import Enclosure
from encamp.model.errors import Code, EncampError

MASTER = "master"
MOST_SITES = 1000
OURS = ("cell", "spool", "log", "hosts")
"""What a site makes in its directory."""


class GridEngineSite:
    def __init__(
        self,
        directory: Path,
        *,
        hosts: int = 2,
        slots: int = 2,
        queue: str = "main.q",
        prefix: str = "node",
    ) -> None:
        """`prefix`: what the hosts are called, with a number behind it."""
        self.directory = directory.resolve()
        self.names = [f"{prefix}{number}" for number in range(1, hosts + 1)]
        self.slots = slots
        self.queue = queue
        self.enclosure = Enclosure(self.directory)
        self.qmaster: Process | None = None
        self.execds: dict[str, Process] = {}
        self.number = 0
        """Tells it from other sites on this machine."""
        self.claim: socket.socket | None = None

    # ── using it ─────────────────────────────────────────────────────────────────────────────────

    @property
    def master(self) -> Host:
        """Where the master runs, and nothing else."""
        return self.enclosure.hosts[0]

    @property
    def hosts(self) -> list[Host]:
        """Where jobs run."""
        return self.enclosure.hosts[1:]

    @property
    def common(self) -> Path:
        """What all hosts of the cell have of it, as seen from outside."""
        return self.directory / "cell" / "common"

    def run(
        self, command: Sequence[str | Path], **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """As root on the master."""
        return self.master.run(command, **options)

    def run_as(
        self, user: str, command: Sequence[str | Path], **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """As an ordinary user on the master, in the user's home unless `directory` is given."""
        return self.master.run(command, user=user, **options)

    def change(self, kind: str, name: str, **values: str) -> None:
        """Change some values of one of the cell's objects: `change("q", "main.q", slots="4")`."""
        shown = self.run(["qconf", f"-s{kind}", *([name] if name else [])]).stdout
        self.tell(f"-M{kind}", cell.with_values(shown, values), *([name] if kind == "conf" else []))

    def tell(self, option: str, text: str, name: str = "") -> None:
        """Have `qconf` read a description. It takes a configuration's name from its file."""
        script = 'd=$(mktemp -d); cat > "$d/$2"; qconf "$1" "$d/$2"; s=$?; rm -r "$d"; exit $s'
        self.run(["sh", "-c", script, "sh", option, name or "described"], input=text)

    # ── its daemons ──────────────────────────────────────────────────────────────────────────────

    def start_qmaster(self) -> None:
        self.qmaster = self.start_daemon(self.master, "sge_qmaster")

    def start_execd(self, host: Host) -> None:
        self.execds[host.name] = self.start_daemon(host, "sge_execd")

    def lose(self, host: Host) -> None:
        """As if somebody had pulled its plug."""
        self.enclosure.remove(host)
        self.execds.pop(host.name)

    def revive(self, name: str) -> Host:
        """A host that was lost begins anew, with the files that it had."""
        host = self.enclosure.add(name)
        self.start_execd(host)
        self.wait_for_hosts()
        return host

    def start_daemon(self, host: Host, name: str) -> Process:
        return host.start(
            [cell.PROGRAMS / name],
            log=self.directory / "log" / f"{name}.{host.name}",
            variables=cell.VARIABLES | {"SGE_ND": "1"},
        )

    def answers(self) -> bool:
        return self.run(["qconf", "-sh"], check=False).returncode == 0

    def wait_for_hosts(self) -> None:
        """Until all queue instances take jobs."""
        command = ["qselect", "-q", self.queue, "-qs", "u"]

        def known() -> bool:
            done = self.run(command, check=False)
            return done.returncode != 0 or not done.stdout.strip()

        wait_until(known, "the execution hosts")

    # ── from nothing to nothing ──────────────────────────────────────────────────────────────────

    def __enter__(self) -> GridEngineSite:
        try:
            self.begin()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def begin(self) -> None:
        if not cell.PROGRAMS.joinpath("sge_qmaster").exists():
            raise EncampError(
                Code.PROGRAM_MISSING,
                "Grid Engine is not installed.",
                "Install it with: apt-get install gridengine-master gridengine-exec "
                "gridengine-client",
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        self.take_number()
        self.enclosure.clear_up()
        self.remove_files()
        cell.lay_out(self.directory, MASTER)
        for name in ("cell", "spool"):
            subprocess.run(
                ["chown", "-R", f"{cell.ADMINISTRATOR}:", self.directory / name], check=True
            )
        self.enclosure.begin(MASTER, self.names, prepare=self.mounts())
        become = ["setpriv", f"--reuid={cell.ADMINISTRATOR}", f"--regid={cell.ADMINISTRATOR}"]
        for command in cell.first_spooling():
            self.run([*become, "--clear-groups", *command], directory="/", variables=cell.VARIABLES)
        self.start_qmaster()
        wait_until(self.answers, "the master of Grid Engine")
        self.configure()
        for host in self.hosts:
            self.start_execd(host)
        self.wait_for_hosts()

    def take_number(self) -> None:
        """One that no other site on this machine has at the same time: a name that only one process
        can have stands for it."""
        for number in range(MOST_SITES):
            claim = socket.socket(socket.AF_UNIX)
            try:
                claim.bind(f"\0encamp-gridengine-{number}")
            except OSError:
                claim.close()
                continue
            self.number, self.claim = number, claim
            return
        raise EncampError(
            Code.NO_ROOM, f"There are {MOST_SITES} sites of Grid Engine already.", transient=True
        )

    def mounts(self) -> str:
        """The cell, where programs of the packages look for it."""
        return f"""
            mount --bind {shlex.quote(str(self.directory / "cell"))} {cell.ROOT / cell.CELL}
            mount --bind {shlex.quote(str(self.directory / "spool"))} {cell.SPOOL}
        """

    def configure(self) -> None:
        self.run(["qconf", "-as", MASTER])
        for number, name in enumerate(self.names):
            self.run(["qconf", "-ah", name])
            self.run(["qconf", "-as", name])
            self.tell("-Ae", cell.HOST.format(name=name))
            self.tell("-Aconf", cell.groups_of(self.number, number), name)
        self.tell("-Ahgrp", f"group_name @allhosts\nhostlist {' '.join(self.names)}\n")
        for name, rule in cell.PARALLEL_RULES.items():
            self.tell("-Ap", cell.PARALLEL.format(name=name, rule=rule))
        template = self.run(["qconf", "-sq"]).stdout
        values = {"qname": self.queue, "slots": str(self.slots), **cell.QUEUE}
        self.tell("-Aq", cell.with_values(template, values))
        self.change("sconf", "", **cell.SCHEDULER)

    def end(self) -> None:
        self.enclosure.end()
        if self.claim is not None:
            self.claim.close()
            self.claim = None
        self.remove_files()

    def remove_files(self) -> None:
        for name in OURS:
            path = self.directory / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
