"""A private Grid Engine site with Encamp on its hosts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from encamp.batch.gridengine.host import becoming, variables_of
from encamp.batch.gridengine.site import GridEngineSite
from encamp.batch.trial.site import Node, Trial, Try


class GridEngineTrial(Trial):
    system = "gridengine"
    own_tries = (
        Try("echo 'uname -a; id' | qsub -cwd -l env=mini", "a job in a machine"),
        Try("qrsh -cwd -l env=mini uname -n", "a command in one"),
        Try("qstat", "the jobs that wait or run"),
        Try("qacct -j 1", "what Grid Engine itself has written down of a job that is over"),
    )

    def bring_up(self, held: ExitStack) -> None:
        self.cell = held.enter_context(
            GridEngineSite(self.directory / "cell", hosts=self.nodes, slots=self.slots)
        )
        if self.arrival is not None:
            self.cell.change("q", self.cell.queue, prolog=str(self.arrival))
        prefix = self.directory / "lib"
        self.encamp(self.front, "batch", "install", self.system, "--prefix", prefix, "--yes")

    @property
    def hosts(self) -> Sequence[Node]:
        return self.cell.hosts

    @property
    def front(self) -> Node:
        return self.cell.master

    @property
    def bus(self) -> str:
        return f"{self.cell.master.address}:4222"

    @property
    def own_files(self) -> Sequence[Path]:
        prefix = self.directory / "lib"
        return [prefix / "gridengine-jsv", prefix / "gridengine-rules"]

    def submit(
        self, environment: str | None, command: Sequence[str], *, name: str = "job", node: str = ""
    ) -> str:
        words = ["qsub", "-terse", "-cwd", "-S", "/bin/sh", "-j", "y", "-N", name]
        words += ["-o", str(self.output("$JOB_ID"))]
        if environment is not None:
            words += ["-l", f"env={environment}"]
        if node:
            words += ["-l", f"hostname={node}"]
        script = f"exec {shlex.join(command)}\n"
        done = self.cell.run_as(self.user.pw_name, words, directory=self.work, input=script)
        return str(done.stdout).strip()

    def entering(self, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        user = self.user.pw_name
        line = [*self.cell.hosts[0].entering(self.work), *becoming(user), *words]
        return line, variables_of(user)

    def waiting(self) -> dict[str, bool]:
        lines = self.cell.run(["qstat", "-u", "*"]).stdout.splitlines()[2:]
        jobs = [line.split() for line in lines]
        return {words[0]: not {"h", "E"}.isdisjoint(words[4]) for words in jobs}
