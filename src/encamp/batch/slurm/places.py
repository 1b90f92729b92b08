"""The hosts of a private Slurm site, and programs that run in them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from encamp import programs
from encamp.batch.slurm.node import STATE
from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.batch.slurm.site import SlurmSite

PRIVATE = "/run/encamp"
"""Where each node's agent has its door."""
PATIENCE = 60.0
"""Seconds after which daemons that have not come up will not do so any more."""
PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Running:
    """A program in a node. It ends with the site, if not before."""

    def __init__(self, pid: int, log: Path) -> None:
        self.pid = pid
        self.log = log
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError as error:
            raise EncampError(
                Code.COMMAND_FAILED,
                "A program in a private Slurm site ended as soon as it was started.",
                detail=self.said(),
            ) from error

    def alive(self) -> bool:
        return not self._ended(0)

    def signal(self, number: signal.Signals) -> None:
        try:
            signal.pidfd_send_signal(self._fd, number)
        except ProcessLookupError:
            return

    def kill(self) -> None:
        """Without any chance to say goodbye."""
        self.signal(signal.SIGKILL)
        self._ended(PATIENCE)

    def stop(self) -> None:
        self.signal(signal.SIGTERM)
        if not self._ended(PATIENCE):
            self.kill()

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def _ended(self, seconds: float) -> bool:
        return bool(select.select([self._fd], [], [], seconds)[0])

    def close(self) -> None:
        os.close(self._fd)


class Place:
    """A host of the site: a node, or where its controller is."""

    def __init__(self, site: SlurmSite, name: str) -> None:
        self.site = site
        self.name = name
        said = site.ask(host=name, private=[PRIVATE], bound={"/etc/hosts": str(site.hosts)})
        self._mounts, self._uts = said["descriptors"]

    def command(
        self,
        words: Sequence[str | Path],
        *,
        user: tuple[int, int] | None = None,
        directory: Path | None = None,
    ) -> list[str]:
        """The command line that runs another one here, for whoever starts it himself."""
        held = f"/proc/{self.site.keeper}/fd"
        line = ["nsenter", f"--mount={held}/{self._mounts}", f"--uts={held}/{self._uts}"]
        line.append(f"--wdns={directory or '/'}")
        if user is not None:
            line += [f"--setuid={user[0]}", f"--setgid={user[1]}"]
        return [*line, "--", *map(str, words)]

    def run(
        self,
        words: Sequence[str | Path],
        *,
        user: tuple[int, int] | None = None,
        directory: Path | None = None,
        variables: Mapping[str, str] | None = None,
        input: str = "",
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program here to its end."""
        done = subprocess.run(
            self.command(words, user=user, directory=directory),
            env={**os.environ, **self.site.environment, **(variables or {})},
            input=input,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=2 * PATIENCE,
            check=False,
        )
        if check and done.returncode != 0:
            raise EncampError(
                Code.COMMAND_FAILED,
                f"'{words[0]}' failed (exit code {done.returncode}) in a private Slurm site.",
                detail=done.stdout + done.stderr,
            )
        return done

    def start(
        self,
        words: Sequence[str | Path],
        *,
        log: Path,
        variables: Mapping[str, str] | None = None,
        polite: bool = True,
    ) -> Running:
        """Start a program here; `polite`: when the site is closed, it is first asked to end."""
        environment = {**os.environ, **self.site.environment, **(variables or {})}
        said = self.site.ask(
            **{"in": self.name},
            start=[str(programs.find(str(words[0]))), *map(str, words[1:])],
            environment=environment,
            log=str(log),
            polite=polite,
        )
        running = Running(said["pid"], log)
        self.site.held.callback(running.close)
        return running


class Node(Place):
    daemon: Running

    def start_daemon(self) -> None:
        log = self.site.directory / "log" / f"said.{self.name}"
        words = ("slurmd", "-D", "-f", self.site.conf)
        self.daemon = self.start(words, log=log, variables={"PATH": PATHS}, polite=False)

    def state(self) -> str:
        """As Slurm says it, what keeps jobs away first: `idle`, `drain+mixed`, ..."""
        said = self.site.run(["scontrol", "show", "node", self.name, "-o"], check=False).stdout
        found = STATE.search(said)
        parts = found[1].lower().split("+") if found else []
        return "+".join(sorted(parts, key=lambda part: part not in ("drain", "down", "fail")))


def wait_for(what: str, true: Callable[[], bool], said: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            raise EncampError(
                Code.NO_ANSWER,
                f"A private Slurm site did not come up: {what} did not answer.",
                detail=said(),
            )
        time.sleep(0.01)
