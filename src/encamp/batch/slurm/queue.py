"""What squeue says about jobs, read so that nothing a user has written can be mistaken for
something else: fields end with a word that is chosen anew for every question."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

import msgspec

from encamp.batch.slurm.hostlist import expand
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB

FIELDS = {
    "number": "JobID",
    "id": "JobArrayID",
    "uid": "UserID",
    "gid": "GroupID",
    "state": "State",
    "status": "exit_code",
    "reason": "Reason",
    "queue": "Partition",
    "account": "Account",
    "cpus": "NumCPUs",
    "nodes": "NodeList",
    "asked_memory": "MinMemory",
    "granted": "tres-alloc",
    "restarts": "RestartCnt",
    "requeue": "Requeue",
    "batch": "BatchFlag",
    "features": "Feature",
    "submitted": "SubmitTime",
    "eligible": "EligibleTime",
    "dependency": "Dependency",
    "comment": "Comment",
    "admin_comment": "admin_comment",
    "name": "Name",
}
"""Ours, and squeue's."""

NOTHING = ("(null)", "N/A", "None")
UNITS = {"": 1, "K": 1024, "M": MIB, "G": 1024 * MIB, "T": 1024**2 * MIB}
AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)[cn]?")
MEMORY = re.compile(r"(?:^|,)mem=([^,]+)")
TASKS = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it stands in Slurm's queue."""

    number: str
    id: str
    uid: int
    gid: int
    state: str
    status: int
    """How its script ended, as the kernel says that: a signal, or 256 times an exit code."""
    reason: str
    queue: str
    account: str
    cpus: int
    nodes: str
    asked_memory: str
    granted: str
    restarts: int
    requeue: bool
    batch: bool
    features: str
    submitted: float
    eligible: float | None
    """It does not begin before; None: Slurm has not looked at it yet."""
    dependency: str
    """On which other jobs it waits."""
    comment: str
    admin_comment: str
    name: str

    @property
    def hosts(self) -> tuple[str, ...]:
        return expand(self.nodes) if self.nodes else ()

    @property
    def called(self) -> str:
        """What means this one alone: the number of an array is that of one of its tasks, too, and
        means all of them."""
        return self.id if "_" in self.id else self.number

    @property
    def whole(self) -> str:
        """What means all components of which it is one, which are queued together."""
        leader, plus, _ = self.id.partition("+")
        return leader if plus else self.called

    @property
    def tasks(self) -> int:
        """How many jobs it stands for: an array that waits is one entry."""
        _, bracket, rest = self.id.partition("_[")
        if not bracket:
            return 1
        count = 0
        for one in rest.partition("]")[0].partition("%")[0].split(","):
            match = TASKS.fullmatch(one)
            if match is None:
                raise unreadable(self.id)
            first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            count += len(range(first, last + 1, step))
        return count

    @property
    def granted_memory(self) -> int | None:
        """Bytes on all nodes together, if Slurm gives memory out."""
        found = MEMORY.search(self.granted)
        return amount(found[1]) if found else None

    def memory_for(self, cpus: int) -> int | None:
        """Bytes that it asked for on a node where it has so many processors."""
        asked = amount(self.asked_memory)
        return (asked * cpus if self.asked_memory.endswith("c") else asked) or None


def question(word: str) -> str:
    """Fields for `squeue --Format`, each as long as it is and then ended by the word."""
    return ",".join(f"{name}:0{word}" for name in FIELDS.values())


def new_word() -> str:
    """Which nobody can have written before: squeue takes its first digits for a width."""
    return f"x{secrets.token_hex(8)}x"


def entries(said: str, word: str) -> list[Entry]:
    """Everything in an answer."""
    values = said.split(word)
    if len(values) % len(FIELDS) != 1 or values[-1].strip():
        raise unreadable(said)
    count = len(FIELDS)
    return [entry(values[at : at + count]) for at in range(0, len(values) - 1, count)]


def entry(values: Iterable[str]) -> Entry:
    raw = dict(zip(FIELDS, values, strict=True))
    # Complaints of squeue itself come before a line.
    number = re.search(r"\d+$", raw["number"])
    try:
        return Entry(
            number=number[0] if number else raw["number"],
            id=raw["id"],
            uid=int(raw["uid"]),
            gid=int(raw["gid"]),
            state=raw["state"],
            status=status(raw["status"]),
            reason="" if raw["reason"] == "None" else raw["reason"],
            queue=raw["queue"],
            account=text(raw["account"]),
            cpus=int(raw["cpus"]),
            nodes=text(raw["nodes"]),
            asked_memory=raw["asked_memory"],
            granted=text(raw["granted"]),
            restarts=int(raw["restarts"]),
            requeue=raw["requeue"] == "1",
            batch=raw["batch"] != "0",
            features=text(raw["features"]),
            submitted=float(raw["submitted"]),
            eligible=float(raw["eligible"]) if raw["eligible"].isdecimal() else None,
            dependency=text(raw["dependency"]),
            comment=text(raw["comment"]),
            admin_comment=text(raw["admin_comment"]),
            name=raw["name"],
        )
    except ValueError as error:
        raise unreadable(str(raw)) from error


def status(value: str) -> int:
    """Of `9`, or of `0:9`, as later releases say it: an exit code and a signal."""
    code, colon, number = value.rpartition(":")
    return 256 * int(code) + int(number) if colon else int(number)


def text(value: str) -> str:
    return "" if value in NOTHING else value


def amount(value: str) -> int:
    """Bytes of `1500M`; of `0`, none. `c` and `n` say of what it is: of each processor, node."""
    match = AMOUNT.fullmatch(value)
    if match is None:
        raise unreadable(value)
    return int(float(match[1]) * UNITS[match[2]])


def unreadable(said: str) -> EncampError:
    return EncampError(
        Code.PROTOCOL,
        "Slurm described a job in a way that Encamp does not understand.",
        "Is this a newer release of Slurm?",
        detail=said[:2000],
    )
