"""A private Slurm site with Encamp on its nodes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from encamp.batch.slurm.conf import bus_port
from encamp.batch.slurm.site import SlurmSite
from encamp.batch.trial.site import SPANK, Node, Trial, Try

ENVIRONMENT = "env:"
HELD = re.compile(r"held", re.IGNORECASE)
"""What Slurm says of such a job: `JobHeldUser`, `launch failed requeued held` and so on."""


class SlurmTrial(Trial):
    system = "slurm"
    own_tries = (
        Try("sbatch --comment env:mini --wrap 'uname -a; id'", "a job in a machine"),
        *([Try("srun --vmenv=mini uname -n", "a step in one")] if SPANK.exists() else []),
        Try("squeue", "the jobs that wait or run"),
        Try("sacct", "what Slurm has written down of those that ran"),
    )

    def bring_up(self, held: ExitStack) -> None:
        lines = () if self.arrival is None else (f"Prolog={self.arrival}",)
        place = self.directory / "slurm"
        self.slurm = held.enter_context(
            SlurmSite(place, nodes=self.nodes, cpus=self.slots, accounting=True, lines=lines)
        )
        words: list[str | Path] = ["--prefix", self.directory / "lib", "--yes"]
        words += ["--spank"] if SPANK.exists() else []
        self.encamp(self.front, "batch", "install", self.system, *words)
        self.slurm.reconfigure()

    @property
    def hosts(self) -> Sequence[Node]:
        return self.slurm.nodes

    @property
    def front(self) -> Node:
        return self.slurm.controller

    @property
    def bus(self) -> str:
        return f"127.0.0.1:{bus_port(self.slurm.port)}"

    @property
    def own_files(self) -> Sequence[Path]:
        names = ("slurm.conf", "job_submit.lua", "encamp_rules.lua", "plugstack.conf")
        return [self.slurm.conf.with_name(name) for name in names]

    def submit(
        self, environment: str | None, command: Sequence[str], *, name: str = "job", node: str = ""
    ) -> str:
        words = ["sbatch", "--parsable", f"--job-name={name}", f"--output={self.output('%j')}"]
        if environment is not None:
            words.append(f"--comment={ENVIRONMENT}{environment}")
        if node:
            words.append(f"--nodelist={node}")
        done = self.slurm.run_as(
            self.user.pw_uid,
            self.user.pw_gid,
            [*words, f"--wrap={shlex.join(command)}"],
            directory=self.work,
            variables={"HOME": str(self.work), "USER": self.user.pw_name},
        )
        return str(done.stdout).strip()

    def entering(self, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        user = self.user.pw_uid, self.user.pw_gid
        line = self.slurm.nodes[0].command(words, user=user, directory=self.work)
        return line, self.slurm.environment

    def waiting(self) -> dict[str, bool]:
        lines = self.slurm.run(["squeue", "--noheader", "--format=%i %r"]).stdout.splitlines()
        return {line.split()[0]: bool(HELD.search(line)) for line in lines}
