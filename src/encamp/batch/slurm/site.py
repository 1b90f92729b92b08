"""A private Slurm site on this machine, for tests, demonstrations and benchmarks.

    with SlurmSite(Path("/tmp/site")) as site:
        site.run(["sbatch", "job.sh"])
        site.nodes[0].start(["encamp", "agent", "--alone"], log=Path("/tmp/agent.log"))

The daemons are the distribution's own, and each node is a host of its own as far as files and host
names go. It is up in a fraction of a second; nothing of it stays, however its process ends. Needs
root.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from encamp import programs
from encamp.batch.slurm import keeper
from encamp.batch.slurm.accounting import start_accounting
from encamp.batch.slurm.conf import (
    PORTS,
    SiteOptions,
    accounting_port,
    bus_port,
    control_group_conf,
    hosts_file,
    slurm_conf,
)
from encamp.batch.slurm.places import Node, Place, wait_for
from encamp.model.errors import Code, EncampError

LONGEST = 60
"""Characters of the directory's path: sockets below it have names of limited length."""
ABSENT = ("unknown", "down", "not_responding")
"""In the state of a node that is not there."""


class SlurmSite:
    def __init__(self, directory: Path, options: SiteOptions | None = None, **changes: Any) -> None:
        """`changes` are fields of the options; `nodes=3` is short for three names."""
        if isinstance(count := changes.get("nodes"), int):
            changes["nodes"] = tuple(f"n{number + 1}" for number in range(count))
        self.options = options or SiteOptions(**changes)
        self.directory = directory.absolute()
        self.conf = self.directory / "etc" / "slurm.conf"
        self.hosts = self.directory / "etc" / "hosts"
        self.nodes: list[Node] = []
        self.keeper = self.port = 0
        self.held = ExitStack()
        self._control: socket.socket
        self._lock = -1

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's commands are told to find this site."""
        return {"SLURM_CONF": str(self.conf)}

    # ── begin and end ────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            raise EncampError(
                Code.NOT_PERMITTED, "A private Slurm site needs root.", "Run this as root."
            )
        if len(str(self.directory)) > LONGEST or any(c.isspace() for c in str(self.directory)):
            raise EncampError(
                Code.USAGE,
                f"{self.directory} is no good place for a Slurm site: sockets in it would have "
                "names that are too long, or with blanks.",
                f"Choose a directory of at most {LONGEST} characters, such as /tmp/slurm.",
            )
        for name in ("munged", "slurmctld", "slurmd", "nsenter"):
            programs.find(name)
        with self.held:
            self._begin()
            self.held = self.held.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.held.close()

    def _begin(self) -> None:
        made = not self.directory.exists()
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        if made:
            self.held.callback(keeper.remove_empty, str(self.directory))
        self._take()
        keeper.sweep(str(self.directory), list(self.options.nodes))
        for name in keeper.OWN:
            (self.directory / name).mkdir(mode=0o755)
        self.port = self._take_ports()
        self._write()
        self._start_keeper(*(["remove"] if made else []))
        self.controller = Place(self, "")
        munge = self.directory / "munge"
        self.munge = self.controller.start(
            [
                *("munged", "--foreground", f"--key-file={munge}/key", f"--socket={munge}/socket"),
                *(f"--pid-file={munge}/pid", f"--seed-file={munge}/seed"),
                *(f"--log-file={munge}/log", "--num-threads=4"),
            ],
            log=self.directory / "log" / "said.munged",
            polite=False,
        )
        wait_for("munged", (munge / "socket").exists, self.said)
        if self.options.accounting:
            start_accounting(self)
        self.start_controller()
        for name in self.options.nodes:
            self.nodes.append(Node(self, name))
            self.nodes[-1].start_daemon()
        self.wait_until_up()

    def _take(self) -> None:
        """One site at a time in a directory."""
        self._lock = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.held.callback(os.close, self._lock)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EncampError(
                Code.WRONG_STATE,
                f"There is a Slurm site in {self.directory} already.",
                "Choose another directory, or end it first.",
            ) from error

    def _take_ports(self) -> int:
        """The first of a row of free ports. A name that only one process can have keeps another
        site from choosing the same."""
        for first in random.sample(PORTS, len(PORTS)):
            claim = socket.socket(socket.AF_UNIX)
            try:
                claim.bind(f"\0encamp-slurm-{first}")
                daemons = range(first, first + 2 + len(self.options.nodes))
                for port in (*daemons, accounting_port(first), bus_port(first)):
                    with socket.socket() as probe:
                        probe.bind(("127.0.0.1", port))
            except OSError:
                claim.close()
                continue
            self.held.callback(claim.close)
            return first
        raise EncampError(
            Code.NO_ROOM, "No ports are free for a private Slurm site.", transient=True
        )

    def _write(self) -> None:
        etc = self.directory / "etc"
        key = os.open(self.directory / "munge" / "key", os.O_WRONLY | os.O_CREAT, 0o400)
        os.write(key, secrets.token_bytes(128))
        os.close(key)
        self.conf.write_text(slurm_conf(self.directory, self.port, self.options))
        self.hosts.write_text(hosts_file(self.options.nodes, self.options.address))
        (etc / "plugstack.conf").write_text(self.options.plugins)
        if self.options.control_groups:
            (etc / "cgroup.conf").write_text(control_group_conf())
        if self.options.job_submit:
            (etc / "job_submit.lua").write_text(self.options.job_submit)

    def _start_keeper(self, *words: str) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", keeper.__file__),
                    *(str(self.directory), str(theirs.fileno()), *words),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.keeper = process.pid

        def end() -> None:
            self._control.close()
            process.wait()

        self.held.callback(end)

    # ── using it ─────────────────────────────────────────────────────────────────────────────────

    def ask(self, **asked: Any) -> dict[str, Any]:
        """Have the keeper do something."""
        self._control.send(json.dumps(asked).encode())
        said: dict[str, Any] = json.loads(self._control.recv(1 << 20))
        if "error" in said:
            raise EncampError(
                Code.NOT_PERMITTED,
                f"A node of a private Slurm site could not be made: {said['error']}.",
                "It needs root with the right to mount, as outside of containers.",
            )
        return said

    def run(self, words: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a program on the controller's host."""
        return self.controller.run(words, **options)

    def run_as(
        self, uid: int, gid: int, words: Sequence[str | Path], **options: Any
    ) -> subprocess.CompletedProcess[str]:
        return self.controller.run(words, user=(uid, gid), **options)

    def start_controller(self) -> None:
        self.slurmctld = self.controller.start(
            ["slurmctld", "-D", "-f", self.conf],
            log=self.directory / "log" / "said.slurmctld",
            polite=False,
        )
        wait_for("slurmctld", self._listens, self.said)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def reconfigure(self) -> None:
        """Have the daemons read their files again."""
        self.run(["scontrol", "reconfigure"])

    def wait_until_up(self) -> None:
        """Until the controller answers and has heard from all nodes."""
        for node in self.nodes:

            def up(node: Node = node) -> bool:
                state = node.state()
                return bool(state) and not any(word in state for word in ABSENT)

            wait_for(node.name, up, self.said)

    def members(self) -> list[int]:
        """Every process of the site."""
        found: list[int] = self.ask()["members"]
        return found

    def said(self) -> str:
        """The last lines of all its logs."""
        logs = sorted((self.directory / "log").glob("s*"))
        return "\n".join(
            f"── {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in logs
        )
