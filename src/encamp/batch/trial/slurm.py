"""A private Slurm site with Encamp on its nodes."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import ExitStack

from encamp.batch.slurm.site import SlurmSite
from encamp.batch.trial.site import Node, Trial

ENVIRONMENT = "env:"
HELD = re.compile(r"held", re.IGNORECASE)
"""What Slurm says of such a job: `JobHeldUser`, `launch failed requeued held` and so on."""


class SlurmTrial(Trial):
    system = "slurm"

    def bring_up(self, held: ExitStack) -> None:
        lines = () if self.arrival is None else (f"Prolog={self.arrival}",)
        place = self.directory / "slurm"
        self.slurm = held.enter_context(
            SlurmSite(place, nodes=self.nodes, cpus=self.slots, lines=lines)
        )
        prefix = self.directory / "lib"
        self.encamp(self.front, "batch", "install", self.system, "--prefix", prefix, "--yes")
        self.slurm.reconfigure()

    @property
    def hosts(self) -> Sequence[Node]:
        return self.slurm.nodes

    @property
    def front(self) -> Node:
        return self.slurm.controller

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
            variables=self._own_variables(),
        )
        return str(done.stdout).strip()

    def as_user(self, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        user = self.user.pw_uid, self.user.pw_gid
        line = self.slurm.controller.command(words, user=user, directory=self.work)
        return line, {**os.environ, **self.slurm.environment, **self._own_variables()}

    def _own_variables(self) -> dict[str, str]:
        return {"HOME": str(self.work), "USER": self.user.pw_name}

    def waiting(self) -> dict[str, bool]:
        lines = self.slurm.run(["squeue", "--noheader", "--format=%i %r"]).stdout.splitlines()
        return {line.split()[0]: bool(HELD.search(line)) for line in lines}
