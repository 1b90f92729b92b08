"""What all private sites with Encamp on them have in common, whichever batch system they run.

    with trial("slurm", directory, images=default_home(), environments=TEXT) as site:
        job = site.submit("mini", ["echo", "hello"])
        site.wait([job])

Daemons, agents and machines are real; each node is a host of its own as far as they can tell.
Nothing of it is left afterwards.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import msgspec

import encamp.batch
from encamp import programs
from encamp.batch.trial import remover
from encamp.door.places import MANAGER_SOCKET
from encamp.home import Home
from encamp.model.errors import Code, EncampError
from encamp.own_files import check_readable_by

ENCAMP = Path(sys.executable).with_name("encamp")
SPANK = Path(encamp.batch.__file__).with_name("encamp_spank.so")
MANAGER = "manager"
PATHS = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
PATIENCE = 120.0
"""Seconds after which what does not come up will not do so any more."""
LOOK, LONGEST_LOOK = 0.05, 0.4
IGNORED: Callable[[object], None] = lambda _: None  # noqa: E731

SETTINGS = """\
system: {system}
shares: [{work}]
"""


class Node(Protocol):
    """A host of the site: where programs can be run."""

    name: str

    @property
    def run(self) -> Callable[..., Any]:
        """A program, to its end."""

    @property
    def start(self) -> Callable[..., Any]:
        """A program that goes on."""


class Try(NamedTuple):
    """Something to type at the shell of a site's user."""

    command: str
    meaning: str


TRIES = (
    Try("encamp jobs --batch --all", "which jobs came to machines, and where"),
    Try("encamp why {system}:1", "why that job is as it is"),
    Try("encamp batch status", "how this host stands towards {system}"),
    Try("encamp hosts", "the hosts that the manager knows"),
    Try("encamp top --once", "the whole site; without --once it goes on"),
)


class Trial(ABC):
    """A private site, ready for jobs in environments once it is entered."""

    system: str
    own_tries: Sequence[Try] = ()
    """What the batch system's own commands do; `encamp`'s come after them."""

    def __init__(
        self,
        directory: Path,
        *,
        images: Home,
        environments: str = "",
        nodes: int = 2,
        slots: int = 2,
        arrival: str = "",
        tell: Callable[[str], None] = IGNORED,
    ) -> None:
        """`images`: a home whose images serve its hosts. `environments`: their description beyond
        those that are shipped. `arrival`: a script that each host runs when a job has come to it,
        before the job begins. `tell` is called with what happens now."""
        self.directory = directory
        self.nodes = nodes
        self.slots = slots
        self.tell = tell
        self._arrival = arrival
        self.user = submitter()
        check_readable_by(self.user)
        self._images = images
        self._environments = environments
        self._held = ExitStack()

    # ── what each batch system does in its own way ───────────────────────────────────────────────

    @abstractmethod
    def bring_up(self, held: ExitStack) -> None:
        """Start the batch system, and set it up for Encamp."""

    @property
    @abstractmethod
    def hosts(self) -> Sequence[Node]:
        """Where jobs run."""

    @property
    @abstractmethod
    def front(self) -> Node:
        """Where users submit them."""

    @property
    @abstractmethod
    def bus(self) -> str:
        """The address and port that the server of the bus has to itself, once all of it is up."""

    @property
    @abstractmethod
    def own_files(self) -> Sequence[Path]:
        """The batch system's own that are worth a look."""

    @abstractmethod
    def submit(
        self, environment: str | None, command: Sequence[str], *, name: str = "job", node: str = ""
    ) -> str:
        """A new job's id. Its output goes to `output(id)`. `node`: it is for that one alone."""

    @abstractmethod
    def waiting(self) -> dict[str, bool]:
        """The jobs that have not ended, by their ids; and whether they are held, and will not end
        by themselves."""

    @abstractmethod
    def entering(self, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """A command line that runs another one for the submitting user on the first host, and the
        variables by which the batch system's commands find it."""

    # ── what is the same for all ─────────────────────────────────────────────────────────────────

    @property
    def work(self) -> Path:
        """Where the submitting user's files are, in machines as on hosts."""
        return self.directory / "work"

    @property
    def settings(self) -> Path:
        return self.directory / "etc"

    def variables(self, host: Node) -> dict[str, str]:
        """What Encamp is told on one of the hosts."""
        return {
            "ENCAMP_HOME": str(self.home(host).root),
            "ENCAMP_SITE_CONFIG": str(self.settings),
            "ENCAMP_USER_CONFIG": str(self.directory / "none"),
            "ENCAMP_QUIET": "1",
            "COLUMNS": "120",
        }

    def home(self, host: Node) -> Home:
        return Home(self.directory / "homes" / host.name)

    @property
    def files(self) -> Sequence[Path]:
        """What the site's daemons are told, for whoever wants to look."""
        ours = [self.settings / name for name in ("batch.yaml", "environments.yaml", "site.yaml")]
        return [*ours, *self.own_files]

    @property
    def tries(self) -> Sequence[Try]:
        """What the site's user can do."""
        ours = (Try(*(text.format(system=self.system) for text in line)) for line in TRIES)
        return [*self.own_tries, *ours]

    @property
    def arrival(self) -> Path | None:
        """The program that hosts run when a job has come to them."""
        return self.settings / "arrival" if self._arrival else None

    def output(self, id: str) -> Path:
        return self.work / f"{id}.out"

    def encamp(self, host: Node, *words: str | Path, check: bool = True) -> Any:
        return host.run([ENCAMP, *words], variables=self.variables(host), check=check)

    def as_user(self, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """A command line, with its variables, that runs another one as the submitting user does,
        for whoever starts it himself. Nothing that is set for the caller's own Encamp counts."""
        line, variables = self.entering(words)
        manager = Home(self.directory / "homes" / MANAGER)
        return line, {
            "LANG": "C.UTF-8",
            **variables,
            "PATH": f"{self.directory / 'bin'}:{PATHS}",
            "HOME": str(self.work),
            "USER": self.user.pw_name,
            "LOGNAME": self.user.pw_name,
            "ENCAMP_DOOR": str(manager.root / MANAGER_SOCKET),
            "ENCAMP_SITE_CONFIG": str(self.settings),
        }

    def shell(self) -> int:
        """For the submitting user, until whoever is at it has had enough."""
        words, variables = self.as_user(["/bin/bash", "--norc"])
        variables["PS1"] = f"{self.user.pw_name}, {self.system} $ "
        variables["TERM"] = os.environ.get("TERM", "dumb")
        return subprocess.run(words, env=variables, check=False).returncode

    def wait(
        self, jobs: Iterable[str], seconds: float = 600.0, on_left: Callable[[int], None] = IGNORED
    ) -> None:
        """Until these have ended. `on_left` is told how many have not."""
        left, until, pause = set(jobs), time.monotonic() + seconds, LOOK
        while left := left & (waiting := self.waiting()).keys():
            on_left(len(left))
            if held := sorted(id for id in left if waiting[id]):
                raise EncampError(
                    Code.COMMAND_FAILED,
                    f"{self.system} holds {len(held)} of the jobs, which could not be run:"
                    f" {', '.join(held)}.",
                    "The agents have logged why.",
                    detail=self.said(),
                )
            if time.monotonic() > until:
                raise EncampError(
                    Code.TIMEOUT,
                    f"{len(left)} jobs have not ended within {seconds:.0f} seconds.",
                    detail=self.said(),
                )
            # Whoever asks often takes processor time from the jobs.
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_LOOK)

    def said(self) -> str:
        """The last of what the agents have logged."""
        logs = sorted((self.directory / "log").glob("agent.*"))
        return "\n".join(
            f"── {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs
        )

    def __enter__(self) -> Self:
        with ExitStack() as held:
            self._lay_out(held)
            self.tell(f"starting {self.system}")
            self.bring_up(held)
            self._start_manager()
            for host in self.hosts:
                self.tell(f"starting the agent of {host.name}")
                self._start_agent(host, held)
            self._held = held.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.tell(f"taking {self.system} down")
        self._held.close()

    def _lay_out(self, held: ExitStack) -> None:
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        held.enter_context(removed(self.directory))
        for name in ("work", "etc", "homes", "log", "bin"):
            (self.directory / name).mkdir(mode=0o755)
        (self.directory / "bin" / "encamp").symlink_to(ENCAMP)
        os.chown(self.work, self.user.pw_uid, self.user.pw_gid)
        text = SETTINGS.format(system=self.system, work=self.work)
        (self.settings / "batch.yaml").write_text(text)
        (self.settings / "environments.yaml").write_text(self._environments)
        if self.arrival is not None:
            self.arrival.write_text(self._arrival)
            self.arrival.chmod(0o755)

    def _start_manager(self) -> None:
        """And the bus, on which the agents find it."""
        names = ",".join(host.name for host in self.hosts)
        self.encamp(
            *(self.front, "site", "init", self.settings, "--name", "trial"),
            *("--bus", self.bus, "--agents", names),
        )
        server = programs.find("nats-server")
        conf, logs = self.settings / "nats-server.conf", self.directory / "log"
        self.front.start([server, "-c", conf], log=logs / "bus")
        variables = self.variables(self.front)
        variables["ENCAMP_HOME"] = str(Home(self.directory / "homes" / MANAGER).prepare().root)
        self.front.start([ENCAMP, "manager", "--verbose"], log=logs / MANAGER, variables=variables)

    def _start_agent(self, host: Node, held: ExitStack) -> None:
        home = self.home(host).prepare()
        shutil.copytree(self._images.images, home.images, dirs_exist_ok=True)
        log = self.directory / "log" / f"agent.{host.name}"
        host.start([ENCAMP, "agent", "--verbose"], log=log, variables=self.variables(host))
        # Before the batch system is taken down, and with it whoever could be asked.
        held.callback(self.encamp, host, "kill-all", check=False)
        until = time.monotonic() + PATIENCE
        while not self._is_open(host):
            if time.monotonic() > until:
                raise EncampError(
                    Code.NO_ANSWER, f"The agent of {host.name} does not answer.", detail=self.said()
                )
            time.sleep(LOOK)

    def _is_open(self, host: Node) -> bool:
        """Does its agent answer?"""
        said = self.encamp(host, "batch", "status", "--json", check=False)
        return said.returncode == 0 and bool(msgspec.json.decode(said.stdout)["door"])


@contextmanager
def removed(directory: Path) -> Iterator[None]:
    """It is gone afterwards, even if this process is killed."""
    words = [sys.executable, "-I", "-S", remover.__file__, str(directory)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, process_group=0):
        yield


def submitter() -> pwd.struct_passwd:
    """Somebody ordinary to submit jobs: whoever became root, or nobody in particular."""
    if os.geteuid() != 0:
        raise EncampError(
            Code.NOT_PERMITTED,
            "A batch system runs the jobs of all its users: only root can start one.",
            "Run it as root, for example with sudo.",
        )
    number = os.environ.get("SUDO_UID", "")
    if number.isdecimal() and number != "0":
        return pwd.getpwuid(int(number))
    return pwd.getpwnam("nobody")
