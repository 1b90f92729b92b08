"""A private Grid Engine with Encamp on its hosts: real daemons, real agents, real machines, and
ordinary accounts that submit jobs."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from encamp.batch.gridengine.adapter import GridEngine
from encamp.batch.gridengine.cell import PROGRAMS
from encamp.batch.gridengine.host import Host, Process
from encamp.batch.gridengine.site import GridEngineSite
from encamp.home import Home
from encamp.model.batch import BatchSettings
from tests.builds import give_images
from tests.conftest import ENCAMP

PATIENCE = 120.0
"""Seconds after which what was waited for will not come about any more."""
PREFIX = "/var/lib/gridengine/default/common/encamp"
"""Where all hosts of the cell find the starter."""

SETTINGS = """
system: gridengine
shares: [{people}]
close: {{memory: 0, disk: 0}}
open: {{memory: 0, disk: 0}}
every: 1s
restarts: 1
failures: 100
"""

ENVIRONMENTS = """
other: {extends: mini}
again: {extends: mini, reuse: true}
"""


@dataclass(frozen=True)
class Person:
    name: str
    uid: int
    gid: int
    directory: Path


@dataclass
class Camp:
    root: Path
    site: GridEngineSite
    people: list[Person]
    agents: dict[str, Process] = field(default_factory=dict)

    @property
    def configuration(self) -> Path:
        return self.root / "etc"

    # ── agents ───────────────────────────────────────────────────────────────────────────────────

    def home(self, host: Host) -> Home:
        return Home(self.root / f"{host.name}-home")

    def variables(self, host: Host) -> dict[str, str]:
        return {
            "ENCAMP_HOME": str(self.home(host).root),
            "ENCAMP_SITE_CONFIG": str(self.configuration),
            "ENCAMP_USER_CONFIG": str(self.root / "none"),
            "ENCAMP_DEBUG": "1",
            "ENCAMP_QUIET": "1",
            "COLUMNS": "200",
        }

    @property
    def names(self) -> list[str]:
        return [host.name for host in self.site.hosts]

    def log(self, host: Host) -> Path:
        return self.root / f"{host.name}.log"

    def start_agent(self, host: Host) -> None:
        self.agents[host.name] = host.start(
            [ENCAMP, "agent", "--alone", "--verbose"],
            log=self.log(host),
            variables=self.variables(host),
        )

    def stop_agent(self, host: Host) -> None:
        agent = self.agents.pop(host.name, None)
        if agent is not None:
            agent.stop()

    def adapter(self, host: Host, /, **more: str) -> GridEngine:
        """What an agent on that host would use. Its commands are run in there."""
        commands = self.root / f"commands-{host.keeper}"
        if not commands.exists():
            commands.mkdir()
            enter = shlex.join(host.entering("/"))
            for name in ("qstat", "qconf", "qmod", "qalter"):
                script = commands / name
                script.write_text(f'#!/bin/sh\nexec {enter} {PROGRAMS}/{name} "$@"\n')
                script.chmod(0o755)
        programs = {"commands": str(commands), "host": host.name, **more}
        return GridEngine(BatchSettings(system="gridengine", programs=programs))

    def encamp(
        self, host: Host, *words: str | Path, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        return host.run([ENCAMP, *words], variables=self.variables(host), check=check)

    def install(self) -> None:
        words = ("batch", "install", "gridengine", "--prefix", PREFIX, "--yes")
        self.encamp(self.site.master, *words)

    def kill_daemons(self) -> None:
        """Of Grid Engine, all of them."""
        assert self.site.qmaster is not None
        self.site.qmaster.kill()
        for execd in self.site.execds.values():
            execd.kill()

    def start_daemons(self) -> None:
        self.site.start_qmaster()
        self.wait_for("the master", self.site.answers)
        for host in self.site.hosts:
            self.site.start_execd(host)
        self.site.wait_for_hosts()

    def restart_daemons(self) -> None:
        self.kill_daemons()
        self.start_daemons()

    def queue_value(self, name: str) -> str:
        shown = self.site.run(["qconf", "-sq", self.site.queue]).stdout
        return next(words[1] for line in shown.splitlines() if (words := line.split())[0] == name)

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────

    def submit(
        self, person: Person, *options: str | Path, script: str = "", check: bool = True
    ) -> str:
        """The id of a new job. A script is what it runs; without one the options say that."""
        words = ["qsub", "-terse", *options]
        done = self.site.run_as(person.name, words, input=script, check=False)
        if check:
            assert done.returncode == 0, done.stderr
            return done.stdout.strip().partition(".")[0]
        return done.stdout + done.stderr

    def states(self) -> dict[str, str]:
        """Of all jobs that are there: `{"17": "r", "18.3": "qw"}`."""
        found = {}
        for line in self.site.run(["qstat", "-u", "*"]).stdout.splitlines()[2:]:
            words = line.split()
            task = words[-1] if len(words) in (9, 10) and not words[-1].startswith("0:") else ""
            running = "@" in line
            has_task = len(words) == (10 if running else 9)
            found[f"{words[0]}.{task}" if has_task else words[0]] = words[4]
        return found

    def state(self, id: str) -> str:
        return self.states().get(id, "")

    def wait_for(self, what: str, true: Callable[[], Any]) -> Any:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = true()
            if found:
                return found
            time.sleep(0.1)
        raise AssertionError(f"Waited in vain for {what}.\n{self.everything_said()}")

    def everything_said(self) -> str:
        logs = [self.log(host) for host in self.site.hosts]
        logs += sorted(self.site.directory.glob("spool/**/messages"))
        said = [
            f"── {log.relative_to(self.root)}\n{log.read_text()[-5000:]}"
            for log in logs
            if log.exists()
        ]
        listed = self.site.run(["qstat", "-f", "-explain", "E", "-u", "*"], check=False)
        return "\n".join([*said, listed.stdout])

    def closed_by_errors(self) -> list[str]:
        """Queues that take no more jobs: Grid Engine believes that their hosts are at fault."""
        words = ["qselect", "-q", self.site.queue, "-qs", "E"]
        return self.site.run(words, check=False).stdout.split()

    def wait_for_state(self, id: str, *letters: str) -> str:
        """Until it has one of these."""
        wanted = f"job {id} in {letters}"
        return str(self.wait_for(wanted, lambda: (s := self.state(id)) in letters and s))

    def ended(self, id: str) -> dict[str, str]:
        """Wait for a job's end; what the accounting says of its last run."""
        number = id.partition(".")[0]
        gone = lambda: not any(each.partition(".")[0] == number for each in self.states())  # noqa: E731
        self.wait_for(f"the end of job {id}", gone)
        return self.wait_for(f"the accounts of job {id}", lambda: self.accounts(id))[-1]  # type: ignore[no-any-return]

    def accounts(self, id: str) -> list[dict[str, str]]:
        """All runs of a job."""
        number, _, task = id.partition(".")
        words = ["qacct", "-j", number, *(["-t", task] if task else [])]
        done = self.site.run(words, check=False)
        found: list[dict[str, str]] = []
        for line in done.stdout.splitlines():
            if line.startswith("====="):
                found.append({})
            elif line.strip() and found:
                name, _, value = line.partition(" ")
                found[-1][name] = value.strip()
        return found

    def output(self, person: Person, id: str, name: str = "STDIN", stream: str = "o") -> str:
        number, _, task = id.partition(".")
        path = person.directory / f"{name}.{stream}{number}{f'.{task}' if task else ''}"
        return path.read_text() if path.exists() else ""

    def printed(self, person: Person, id: str, text: str, **where: str) -> None:
        self.wait_for(f"'{text}' of job {id}", lambda: text in self.output(person, id, **where))

    # ── what there is ────────────────────────────────────────────────────────────────────────────

    def machines(self) -> list[int]:
        """Processes of machines on any of the hosts."""
        found = []
        for name in os.listdir("/proc"):
            with suppress(OSError, ValueError):
                where = Path(f"/proc/{int(name)}/cwd").readlink()
                program = Path(f"/proc/{name}/comm").read_text()
                if program.startswith("qemu") and where.is_relative_to(self.root):
                    found.append(int(name))
        return found

    def machine_states(self) -> list[str]:
        found = []
        for host in self.site.hosts:
            for path in self.home(host).owners.glob("*/machines/*/machine.json"):
                with suppress(OSError, ValueError):
                    found.append(str(json.loads(path.read_bytes())["state"]))
        return found

    def left(self) -> list[str]:
        """Everything of jobs that is still there."""
        found = [f"job {id} {state}" for id, state in self.states().items()]
        found += [f"machine {pid}" for pid in self.machines()]
        for host in self.site.hosts:
            home = self.home(host)
            found += [str(path) for path in (home.root / "commands" / "under-way").glob("*")]
            found += [str(path) for path in (home.root / "claims").glob("*")]
            found += [str(path) for path in home.owners.glob("*/machines/*")]
            found += [str(path) for path in home.machines.glob("*")]
        return found

    def nothing_left(self) -> None:
        try:
            self.wait_for("the end of all jobs", lambda: not self.left())
        except AssertionError as error:
            left = self.left()
            for id in self.states():
                self.site.run(["qdel", "-f", id.partition(".")[0]], check=False)
            raise AssertionError(f"{left} is left.\n{error}") from None
        closed = self.closed_by_errors()
        if closed:
            said = self.everything_said()
            # One test's error is not to keep the jobs of the next from running.
            self.site.run(["qmod", "-c", *closed])
            raise AssertionError(f"{closed} is closed by an error.\n{said}")

    def host_of(self, id: str) -> Host:
        """Where a job runs."""
        words = ["qstat", "-u", "*", "-s", "r"]
        for line in self.site.run(words).stdout.splitlines():
            if line.split()[:1] == [id.partition(".")[0]]:
                name = next(word for word in line.split() if "@" in word).partition("@")[2]
                return next(host for host in self.site.hosts if host.name == name)
        raise AssertionError(f"job {id} does not run")


@contextmanager
def a_camp(images: Home, people: int = 2) -> Iterator[Camp]:
    root = Path(tempfile.mkdtemp(prefix="encamp-gridengine-"))
    root.chmod(0o755)
    with ExitStack() as held:
        held.callback(shutil.rmtree, root, ignore_errors=True)
        (root / "people").mkdir()
        (root / "etc").mkdir()
        (root / "etc" / "batch.yaml").write_text(SETTINGS.format(people=root / "people"))
        (root / "etc" / "environments.yaml").write_text(ENVIRONMENTS)
        everybody = [held.enter_context(a_person(root / "people")) for _ in range(people)]
        # Other private sites of this machine call theirs otherwise.
        prefix = f"g{secrets.token_hex(3)}n"
        site = held.enter_context(GridEngineSite(root / "site", hosts=2, slots=2, prefix=prefix))
        camp = Camp(root, site, everybody)
        for host in site.hosts:
            give_images(camp.home(host).prepare(), images)
        yield camp


@contextmanager
def a_person(place: Path) -> Iterator[Person]:
    name = f"camper-{secrets.token_hex(4)}"
    command = ["useradd", "--no-create-home", "--home-dir", str(place / name), "--user-group", name]
    subprocess.run(command, check=True, capture_output=True)
    try:
        entry = pwd.getpwnam(name)
        directory = place / name
        directory.mkdir()
        os.chown(directory, entry.pw_uid, entry.pw_gid)
        yield Person(name, entry.pw_uid, entry.pw_gid, directory)
    finally:
        subprocess.run(["userdel", name], check=True, capture_output=True)
