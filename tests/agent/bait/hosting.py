"""A host with a bait: a real agent of root's, real starters of ordinary users, real machines. It
has a mount namespace of its own, so that its door is its own, too."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from encamp.home import Home
from encamp.model.batch import BatchJob, BatchSettings
from tests.agent.bait.notebook import Notebook, Returned
from tests.builds import give_images
from tests.conftest import ENCAMP, ROOT

PATIENCE = 90.0
"""Seconds after which what was waited for will not come about any more."""

STARTER = ROOT / "src" / "encamp" / "batch" / "encamp-starter"
SHEPHERD = Path(__file__).with_name("shepherd.py")
RUN = Path("/run/encamp")

UMASK, OPEN_FILES = 0o027, (345, 678)
"""What jobs begin with: not what is usual."""

NAMESPACE = """
    mount -t tmpfs -o mode=755 bait /run && mkdir -m 755 /run/encamp && echo up
    exec sleep infinity
"""
"""Nothing of the host's own /run is touched: what others have mounted there would be gone."""

ENVIRONMENTS = """
again: {{extends: mini, reuse: true}}
broken: {{extends: mini, context: {{run: [exit 3]}}}}
forbidden: {{extends: mini, users: [nobody]}}
patient:
  extends: mini
  ready: {{file: "{root}/people/go", timeout: 5m, interval: 0.1s}}
"""

HALTING = """
import os, pathlib, signal, sys

def halt(event, arguments):
    if event in ("os.mkdir", "os.rename") and os.getuid() != 0:
        try:
            wanted, _, part = pathlib.Path({file!r}).read_text().partition(" ")
        except OSError:
            return
        if wanted == event and part in os.fsdecode(arguments[0]):
            os.unlink({file!r})
            os.kill(os.getpid(), signal.SIGSTOP)

sys.addaudithook(halt)
"""
"""Stops a process of an owner's in a chosen moment: when it does something to a file. Nothing of
the product knows."""


@dataclass(frozen=True)
class Person:
    """An ordinary account."""

    name: str
    uid: int
    gid: int
    directory: Path


class Started:
    """A job whose starter runs, or has run."""

    def __init__(self, process: subprocess.Popen[bytes], child: Path) -> None:
        self.process = process
        self._child = child

    @property
    def starter(self) -> int:
        """Its process."""
        return int(wait_for("a starter", lambda: self._child.exists() and self._child.read_text()))

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.starter, number)

    def end(self, timeout: float = PATIENCE) -> subprocess.CompletedProcess[bytes]:
        """How it ended, and what it has printed."""
        out, err = self.process.communicate(timeout=timeout)
        return subprocess.CompletedProcess([], self.process.returncode, out, err)

    def close(self) -> None:
        if self.process.poll() is None:
            with suppress(OSError, ValueError):
                os.kill(int(self._child.read_text()), signal.SIGKILL)
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class Host:
    """The home of its agent stays the same however often that is killed."""

    def __init__(self, root: Path, namespace: int, settings: str) -> None:
        self.root = root
        self.home = Home(root / "home")
        self.notes = root / "notes"
        self.starter = root / "encamp-starter"
        self.configuration = root / "etc"
        self.namespace = namespace
        self._numbers = iter(range(1, 10_000))
        self._started: list[Started] = []
        self.agent: subprocess.Popen[bytes] | None = None
        self.log = root / "agent.log"
        self.notebook = Notebook(
            BatchSettings(system="notebook", programs={"conf": str(self.notes)})
        )
        self.configuration.mkdir()
        self.notes.mkdir()
        self.describe(settings)
        (self.configuration / "environments.yaml").write_text(ENVIRONMENTS.format(root=root))

    @contextmanager
    def described(self, settings: str) -> Iterator[None]:
        """Its agent with these settings, which knows of no failures; afterwards one as before."""
        self._begin_anew(settings)
        try:
            yield
        finally:
            self._begin_anew("")

    def _begin_anew(self, settings: str) -> None:
        self.stop_agent()
        (self.home.root / "batch" / "failing.json").unlink(missing_ok=True)
        self.describe(settings)
        self.start_agent()

    def describe(self, settings: str = "") -> None:
        """What its administrator has written about the batch system."""
        (self.configuration / "batch.yaml").write_text(
            f"system: notebook\nprograms: {{conf: {self.notes}}}\n"
            f"shares: [{self.root}/people]\nclose: {{memory: 0, disk: 0}}\n"
            f"open: {{memory: 0, disk: 0}}\nevery: 1s\n{settings}"
        )

    @property
    def variables(self) -> dict[str, str]:
        return {
            **os.environ,
            "ENCAMP_HOME": str(self.home.root),
            "ENCAMP_SITE_CONFIG": str(self.configuration),
            "ENCAMP_USER_CONFIG": str(self.root / "none"),
            "PYTHONPATH": f"{self.root / 'packages'}{os.pathsep}{ROOT}",
        }

    def inside(self, *words: str | Path) -> list[str]:
        """What runs these words in the host's namespace."""
        return ["nsenter", f"--mount=/proc/{self.namespace}/ns/mnt", "--", *map(str, words)]

    # ── the agent ────────────────────────────────────────────────────────────────────────────────

    def start_agent(self, *words: str) -> None:
        with self.log.open("ab") as log:
            self.agent = subprocess.Popen(
                self.inside(ENCAMP, "agent", "--verbose", *(words or ("--alone",))),
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.wait_for("the door", self.is_open)

    def is_open(self) -> bool:
        """Does anybody answer at the door?"""
        assert self.agent is not None
        assert self.agent.poll() is None, self.said()
        door = Path(f"/proc/{self.namespace}/root{RUN}/bait")
        with suppress(OSError):
            return bool(door.is_socket() and door.with_name("bait.lock").read_text())
        return False

    def kill_agent(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()
        # The next one makes it anew; what is waited for is that.
        with suppress(OSError):
            Path(f"/proc/{self.namespace}/root{RUN}/bait.lock").unlink()

    def stop_agent(self) -> None:
        if self.agent is not None and self.agent.poll() is None:
            self.agent.terminate()
            self.agent.wait(PATIENCE)

    def said(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def wait_for(self, what: str, true: Callable[[], Any]) -> Any:
        try:
            return wait_for(what, true)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()[-6000:]}") from None

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────

    def job(self, person: Person, **fields: Any) -> str:
        """What the batch system knows of a new job; its id."""
        id = str(next(self._numbers))
        job = BatchJob(**{"system": "notebook", "id": id, "uid": person.uid, **fields})
        (self.notes / f"{id}.job").write_bytes(msgspec.json.encode(job))
        return id

    def start(
        self,
        person: Person,
        *words: str | Path,
        id: str | None = None,
        environment: str = "mini",
        variables: dict[str, str] | None = None,
        groups: Sequence[int] = (),
        directory: Path | None = None,
        program: Sequence[str | Path] = (),
        **streams: Any,
    ) -> Started:
        """Start a job as its batch system would. `program`: something else than the starter."""
        id = self.job(person) if id is None else id
        child = self.root / f"child-{secrets.token_hex(6)}"
        called = program or (self.starter, f"pbs:{environment}", "--", *words)
        process = subprocess.Popen(
            self.inside(
                sys.executable,
                SHEPHERD,
                id,
                str(person.uid),
                str(person.gid),
                ",".join(map(str, groups)),
                directory or person.directory,
                f"{UMASK:o}",
                *map(str, OPEN_FILES),
                *called,
            ),
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(person.directory),
                "SHEPHERD_CHILD": str(child),
                **(variables or {}),
            },
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                **streams,
            },
        )
        started = Started(process, child)
        self._started.append(started)
        return started

    def end_jobs(self) -> None:
        """Those of a test that did not see to it."""
        for started in self._started:
            started.close()
        self._started.clear()

    def run(
        self, person: Person, *words: str | Path, **more: Any
    ) -> subprocess.CompletedProcess[bytes]:
        return self.start(person, *words, **more).end()

    def outside(
        self, person: Person, *words: str | Path, variables: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run something on the host as somebody, and in no job."""
        return subprocess.run(
            self.inside(
                *("setpriv", f"--reuid={person.uid}", f"--regid={person.gid}", "--clear-groups"),
                *words,
            ),
            env={"PATH": "/usr/bin:/bin", **(variables or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )

    def returned(self, id: str) -> list[Returned]:
        return self.notebook.returned(id)

    @contextmanager
    def halting(self, event: str, part: str) -> Iterator[None]:
        """The next process of an owner's stops when it does that to such a file."""
        directory = self.root / "halting"
        (directory / "at").write_text(f"{event} {part}")
        try:
            yield
        finally:
            (directory / "at").unlink(missing_ok=True)

    def halted(self) -> int:
        """The process that has stopped."""
        return int(self.wait_for("a process that stops", lambda: next(iter(self._halted()), 0)))

    def _halted(self) -> list[int]:
        return [pid for pid in self.workers() if _state(pid) == "T"]

    # ── what there is ────────────────────────────────────────────────────────────────────────────

    def machines(self) -> list[int]:
        """Processes of machines: QEMUs that work below the host's home."""
        return [pid for pid in _all_pids() if self._is_machine(pid)]

    def _is_machine(self, pid: int) -> bool:
        try:
            where = Path(f"/proc/{pid}/cwd").readlink()
            name = Path(f"/proc/{pid}/comm").read_text()
        except OSError:
            return False
        return where.is_relative_to(self.home.root) and name.startswith("qemu")

    def workers(self) -> list[int]:
        """Processes in which commands of the bait work: not root's any more, or about to be; the
        last of each family. Share servers are children, too."""
        found = self.carriers()
        names = {pid: _name(pid) for pid in _all_pids() if _parent(pid) in found}
        servers = {pid for pid, name in names.items() if name.startswith("encamp-shares")}
        working = {pid for pid, name in names.items() if name.startswith(("python", "encamp"))}
        return sorted(working - servers)

    def carriers(self) -> list[int]:
        """Processes that commands of the bait belong to."""
        marked = [pid for pid in _all_pids() if self._is_marked(pid)]
        return [pid for pid in marked if _parent(pid) not in marked and _is_python(pid)]

    def _is_marked(self, pid: int) -> bool:
        """Its files are open in the directory of a command."""
        directory = self.home.root / "commands" / "under-way"
        try:
            open_now = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]  # noqa: PTH115
        except OSError:
            return False
        return any(one.startswith(f"{directory}/bait.") for one in open_now)

    def left(self) -> list[str]:
        """Everything of jobs that is still there."""
        commands = self.home.root / "commands" / "under-way"
        found = [f"machine {pid}" for pid in self.machines()]
        found += [f"carrier {pid}" for pid in self.carriers()]
        found += [str(path) for path in commands.glob("*")]
        found += [str(path) for path in (self.home.root / "claims").glob("*")]
        found += [str(path) for path in self.home.owners.glob("*/machines/*")]
        found += [str(path) for path in self.home.machines.glob("*")]
        return found

    def nothing_left(self) -> None:
        self.wait_for(f"nothing left but {self.left()}", lambda: not self.left())


def wait_for(what: str, true: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = true()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"Waited in vain for {what}.")


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    return 0


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _is_python(pid: int) -> bool:
    return _name(pid).startswith(("python", "encamp"))


@contextmanager
def a_host(
    images: Home, people: int = 1, settings: str = ""
) -> Iterator[tuple[Host, list[Person]]]:
    """A host with the images of a home, and its people. Nothing of it is left afterwards."""
    root = Path(tempfile.mkdtemp(prefix="encamp-bait-"))
    root.chmod(0o755)
    with ExitStack() as held:
        held.callback(shutil.rmtree, root, ignore_errors=True)
        namespace = held.enter_context(_namespace())
        host = Host(root, namespace, settings)
        give_images(host.home.prepare(), images)
        shutil.copy(STARTER, host.starter)
        _install(root / "packages")
        (root / "halting").mkdir()
        # Owners' processes remove what is in it.
        (root / "halting").chmod(0o777)
        halting = HALTING.format(file=str(root / "halting" / "at"))
        (root / "packages" / "sitecustomize.py").write_text(halting)
        (root / "people").mkdir()
        everybody = [held.enter_context(_person(root / "people")) for _ in range(people)]
        try:
            host.start_agent()
            yield host, everybody
        finally:
            host.stop_agent()
            for pid in (*host.carriers(), *host.machines()):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _install(packages: Path) -> None:
    """The batch system of the tests, as a package that brings one."""
    information = packages / "notebook_of_jobs-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: notebook-of-jobs\nVersion: 1.0\n"
    )
    (information / "entry_points.txt").write_text(
        "[encamp.batch_systems]\nnotebook = tests.agent.bait.notebook:Notebook\n"
    )


@contextmanager
def _namespace() -> Iterator[int]:
    """A process that holds a mount namespace, in which /run/encamp is empty."""
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", NAMESPACE],
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        yield holder.pid
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()


@contextmanager
def _person(place: Path) -> Iterator[Person]:
    name = f"camper-{secrets.token_hex(4)}"
    command = ["useradd", "--no-create-home", "--home-dir", str(place / name), "--user-group", name]
    subprocess.run(command, check=True, capture_output=True)
    try:
        entry = pwd.getpwnam(name)
        directory = place / name
        directory.mkdir(mode=0o750)
        os.chown(directory, entry.pw_uid, entry.pw_gid)
        yield Person(name, entry.pw_uid, entry.pw_gid, directory)
    finally:
        subprocess.run(["userdel", name], check=False, capture_output=True)
