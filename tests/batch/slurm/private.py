"""A private Slurm site with ordinary users, and how tests use it."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from encamp.batch.slurm.adapter import Slurm
from encamp.batch.slurm.site import SlurmSite
from encamp.model.batch import BatchSettings

root_only = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can start daemons that run other users' jobs"
)
PATIENCE = 150.0
"""Seconds after which what was waited for will not come about any more."""

STILL = 50
"""Looks at something that is not to move."""


@dataclass(frozen=True)
class User:
    name: str
    uid: int
    gid: int
    directory: Path

    def write(self, name: str, text: str) -> Path:
        """A program of its own."""
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o755)
        os.chown(path, self.uid, self.gid)
        return path


@contextmanager
def user_in(place: Path) -> Iterator[User]:
    name = f"camper-{secrets.token_hex(4)}"
    directory = place / name
    command = ["useradd", "--no-create-home", "--home-dir", str(directory), "--user-group", name]
    subprocess.run(command, check=True, capture_output=True)
    try:
        entry = pwd.getpwnam(name)
        directory.mkdir(mode=0o755)
        os.chown(directory, entry.pw_uid, entry.pw_gid)
        yield User(name, entry.pw_uid, entry.pw_gid, directory)
    finally:
        subprocess.run(["userdel", name], check=True, capture_output=True)


class Cluster:
    """What tests do with a site and its users."""

    def __init__(self, site: SlurmSite, users: list[User], place: Path) -> None:
        self.site = site
        self.users = users
        self.place = place
        """A directory that everybody can enter."""

    def slurm(self, node: int = 0, **settings: Any) -> Slurm:
        """The adapter as an agent on that node has it."""
        programs = {"conf": str(self.site.conf), "node": self.site.nodes[node].name}
        return Slurm(BatchSettings(system="slurm", programs=programs, **settings))

    def run(self, *words: str | Path, user: User | None = None, **options: Any) -> str:
        """As root, or as a user in its home directory."""
        if user is not None:
            options.setdefault("directory", user.directory)
            options["user"] = (user.uid, user.gid)
            options.setdefault("variables", {"HOME": str(user.directory), "USER": user.name})
        return str(self.site.run(words, **options).stdout)

    def refused(self, *words: str | Path, user: User, **options: Any) -> str:
        """What a command says that is refused."""
        said = self.site.run(
            words, user=(user.uid, user.gid), directory=user.directory, check=False, **options
        )
        assert said.returncode != 0, said.stdout
        return str(said.stderr)

    def submit(self, *words: str | Path, user: User | None = None, **options: Any) -> str:
        """A job's number."""
        user = user or self.users[0]
        return self.run("sbatch", "--parsable", *words, user=user, **options).strip()

    def state(self, job: str) -> str:
        said = self.site.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"], check=False)
        return str(said.stdout.partition("\n")[0])

    def field(self, job: str, name: str) -> str:
        """Of what squeue can show of a job."""
        return self.run("squeue", "-h", "-t", "all", "-j", job, "-O", f"{name}:0").strip()

    def wait_for_state(self, job: str, *states: str) -> str:
        return str(
            self.wait_for(
                f"job {job} {states}",
                lambda: (now := self.state(job)) in states and now,
            )
        )

    def wait_for(self, what: str, true: Callable[[], Any]) -> Any:
        """Until it comes about; the logs of all daemons, if it does not."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if found := true():
                return found
            time.sleep(0.03)
        queue = self.site.run(["squeue", "-t", "all"], check=False).stdout
        queue += self.site.run(["sinfo", "-N", "-l"], check=False).stdout
        raise AssertionError(f"Waited in vain: {what}\n{queue}\n{self.site.said()}")

    def wait_until_still(self, what: str, look: Callable[[], Any]) -> Any:
        """Until many looks in a row have seen the same; what they saw."""
        seen: list[Any] = []

        def still() -> bool:
            seen.append(look())
            return len(seen) > STILL and all(one == seen[-1] for one in seen[-STILL:])

        self.wait_for(f"{what} that stands still", still)
        return seen[-1]

    def wait_for_text(self, path: Path, text: str = "") -> str:
        """What a file holds, once it holds this and a whole last line."""

        def read() -> str:
            found = path.read_text(errors="replace") if path.exists() else ""
            return found if text in found and found.endswith(("\n", "\0")) else ""

        return str(self.wait_for(f"'{text}' in {path}", read))

    def clear(self) -> None:
        """No jobs, and all nodes as they were."""
        for user in (*(user.name for user in self.users), "root"):
            self.run("scancel", f"--user={user}", check=False)
        self.wait_for("an empty queue", lambda: not self.run("squeue", "-h"))
        for node in self.site.nodes:
            if any(word in node.state() for word in ("drain", "down", "fail")):
                self.run("scontrol", "update", f"NodeName={node.name}", "State=resume", check=False)
        self.wait_for(
            "idle nodes", lambda: all(node.state().startswith("idle") for node in self.site.nodes)
        )


@contextmanager
def private_place() -> Iterator[Path]:
    """A short directory that everybody can enter."""
    place = Path(tempfile.mkdtemp(prefix="encamp-", dir="/tmp"))
    place.chmod(0o755)
    try:
        yield place
    finally:
        shutil.rmtree(place)


@contextmanager
def private_cluster(
    *, users: int = 1, script: Callable[[Path], str] | None = None, **options: Any
) -> Iterator[Cluster]:
    """A site with ordinary users. `script` makes the text of job_submit.lua, given the directory it
    will be in."""
    with ExitStack() as held:
        place = held.enter_context(private_place())
        (place / "people").mkdir()
        made = [held.enter_context(user_in(place / "people")) for _ in range(users)]
        if script is not None:
            options["job_submit"] = script(place / "site" / "etc")
        site = held.enter_context(SlurmSite(place / "site", **options))
        yield Cluster(site, made, place)
