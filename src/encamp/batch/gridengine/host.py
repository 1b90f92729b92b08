"""A host that is made of namespaces: commands are run in it, and programs started."""

from __future__ import annotations

import os
import pwd
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from encamp.model.errors import Code, EncampError
from encamp.programs import find

PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PATIENCE = 60.0
"""Seconds in which a namespace is there or gone, on however busy a machine."""


@dataclass
class Process:
    """What was started in a host; `pid` is what others on the machine call it."""

    outer: subprocess.Popen[bytes]
    pid: int

    def running(self) -> bool:
        return self.outer.poll() is None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """A killed process is gone afterwards."""
        if self.running():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self.outer.wait(PATIENCE)

    def stop(self) -> int:
        """Ask it to end; how it did."""
        if self.running():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
        return self.outer.wait(PATIENCE)


@dataclass
class Host:
    """A host of its own as far as its processes can tell. Commands are run in it as root, or as
    somebody else."""

    name: str
    address: str
    keeper: int
    """The process that its namespaces are entered through."""
    processes: list[Process] = field(default_factory=list)

    def entering(self, directory: str | Path) -> list[str]:
        entry = [str(find("nsenter")), "--target", str(self.keeper)]
        return [*entry, "--mount", "--net", "--uts", "--pid", f"--wdns={directory}", "--"]

    def run(
        self,
        command: Sequence[str | Path],
        *,
        user: str = "root",
        input: str = "",
        variables: Mapping[str, str] | None = None,
        directory: str | Path | None = None,
        check: bool = True,
        timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        done = subprocess.run(
            [*self.entering(directory or home_of(user)), *becoming(user), *map(str, command)],
            env=variables_of(user) | dict(variables or {}),
            input=input,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
        if check and done.returncode != 0:
            raise EncampError(
                Code.COMMAND_FAILED,
                f"On {self.name}, '{shlex.join(map(str, command))}' ended with {done.returncode}.",
                f"It said: {(done.stdout + done.stderr).strip()[-1000:]}",
            )
        return done

    def start(
        self,
        command: Sequence[str | Path],
        *,
        user: str = "root",
        log: Path | None = None,
        variables: Mapping[str, str] | None = None,
        directory: str | Path | None = None,
    ) -> Process:
        """Start a program that goes on, at most as long as the host does."""
        with open(log or os.devnull, "ab") as output:
            outer = subprocess.Popen(
                [*self.entering(directory or "/"), *becoming(user), *map(str, command)],
                env=variables_of(user) | dict(variables or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        process = Process(outer, child_of(outer))
        self.processes.append(process)
        return process


def child_of(outer: subprocess.Popen[bytes]) -> int:
    """The process that `unshare` or `nsenter` has started for us, and waits for."""
    found: list[int] = []

    def look() -> bool:
        with suppress(psutil.NoSuchProcess):
            found.extend(child.pid for child in psutil.Process(outer.pid).children())
        return bool(found) or outer.poll() is not None

    wait_until(look, "a process in its namespaces")
    if not found:
        raise EncampError(
            Code.COMMAND_FAILED, f"A program ended with {outer.returncode} before it began."
        )
    return found[0]


def wait_until(true: Callable[[], object], what: str, patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while not true():
        if time.monotonic() > end:
            raise EncampError(Code.TIMEOUT, f"Waited {patience:.0f} seconds in vain for {what}.")
        time.sleep(0.01)


def becoming(user: str) -> list[str]:
    if user == "root":
        return []
    entry = pwd.getpwnam(user)
    who = [f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups"]
    return [str(find("setpriv")), *who]


def home_of(user: str) -> str:
    home = pwd.getpwnam(user).pw_dir
    return home if Path(home).is_dir() else "/"


def variables_of(user: str) -> dict[str, str]:
    entry = pwd.getpwnam(user)
    return {"PATH": PATHS, "HOME": entry.pw_dir, "USER": user, "LOGNAME": user, "LANG": "C.UTF-8"}
