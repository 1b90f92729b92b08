"""What a machine must know of slurm.conf before it can ask the controller for all of it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from encamp.model.errors import Code, EncampError

PORT, NODE_PORT = 6817, 6818
MUNGE_SOCKET = "/run/munge/munge.socket.2"
SPOOL, RUN = "/var/spool/slurmd", "/var/run/slurmd.pid"
HOST = re.compile(r"(?P<name>[^()\s]+)(?:\((?P<address>[^()]+)\))?")


class SlurmConf(msgspec.Struct, frozen=True):
    values: dict[str, list[str]]
    """By small letters; a name may be given several times."""
    second_control_groups: bool = False
    """Is Slurm told to use control groups of the second generation, and no others?"""

    @classmethod
    def read(cls, path: Path) -> SlurmConf:
        try:
            text = path.read_text(errors="replace")
        except OSError as error:
            raise EncampError(
                Code.CONFIGURATION,
                f"Slurm's configuration {path} cannot be read: {error.strerror}.",
                "Say where it is in batch.yaml: programs: {conf: /etc/slurm/slurm.conf}.",
            ) from error
        values: dict[str, list[str]] = {}
        for line in text.splitlines():
            name, is_set, value = line.partition("#")[0].strip().partition("=")
            if is_set and " " not in name:
                values.setdefault(name.lower(), []).append(value.strip())
        groups = path.with_name("cgroup.conf")
        second = groups.is_file() and "cgroup/v2" in groups.read_text(errors="replace").lower()
        return cls(values, second)

    def value(self, name: str, default: str) -> str:
        return self.values.get(name, [default])[-1]

    @property
    def controllers(self) -> str:
        """As `slurmd --conf-server` wants them: the first that answers is asked."""
        port = self.value("slurmctldport", str(PORT)).partition("-")[0]
        hosts = (HOST.fullmatch(host) for host in self.values.get("slurmctldhost", []))
        found = [f"{host['address'] or host['name']}:{port}" for host in hosts if host]
        if not found:
            raise EncampError(
                Code.CONFIGURATION,
                "Slurm's configuration does not say where its controller is.",
                "Say it in batch.yaml: programs: {controller: 'HOST:PORT'}.",
            )
        return ",".join(found)

    @property
    def port(self) -> int:
        """Where the daemons of nodes listen."""
        return int(self.value("slurmdport", str(NODE_PORT)))

    @property
    def munge_socket(self) -> str:
        for word in self.value("authinfo", "").split(","):
            name, _, value = word.partition("=")
            if name.strip().lower() == "socket":
                return value.strip()
        return MUNGE_SOCKET

    def log(self, node: str) -> str:
        """Where a node's daemon says what it does; empty: to the system's log."""
        return _on(node, self.value("slurmdlogfile", ""))

    def places(self, node: str) -> list[str]:
        """The directories of a node that its daemon expects to be there."""
        files = [_on(node, self.value("slurmdpidfile", RUN)), self.log(node)]
        parents = [str(Path(file).parent) for file in files if file]
        return [_on(node, self.value("slurmdspooldir", SPOOL)), *parents]


def _on(node: str, path: str) -> str:
    return path.replace("%n", node).replace("%h", node)
