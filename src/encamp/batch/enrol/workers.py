"""What Encamp needs of a batch system to have machines as its nodes. Another one is another
subclass.

Everything here may block for as long as the batch system takes to answer: callers use threads.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

import msgspec

from encamp.model.batch import BatchSettings
from encamp.model.environment import Context, Environment
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine

LISTENS = 2.0
"""Seconds in which whoever is at an address answers."""


class Seen(msgspec.Struct, frozen=True):
    """A node as its batch system sees it now."""

    up: bool
    """Does it answer the batch system?"""
    jobs: int
    """How many run there, or are being started or ended."""
    closed: bool = False
    """Is nothing more sent there?"""
    ended: bool = False
    """Does the batch system, which has nodes without machines, take its machine for ended?"""
    busy: float | None = None
    """When it last had a job, if the batch system says so."""


class Workers(ABC):
    """The nodes of one batch system that are machines."""

    system: ClassVar[str]

    def __init__(self, settings: BatchSettings) -> None:
        self.settings = settings

    @abstractmethod
    def context(self, machine: Machine, environment: Environment) -> Context:
        """What the machine is handed to become a node. Keys are named by where they are on this
        host: they are in no record, no image and no template."""

    @abstractmethod
    def check(self, name: str, address: str | None) -> None:
        """Refuse a name that another node has: a host of the site's, or somebody's machine that is
        at work. `address`: of the machine that is to be the node; None: there is none yet."""

    @abstractmethod
    def register(self, machine: Machine, environment: Environment) -> None:
        """Tell the batch system of a node to come, whose name was checked. Once more does no
        harm."""

    def offer(self, environment: Environment) -> None:  # noqa: B027
        """Have the batch system take jobs that ask for an environment of which no node is there
        yet. Not needed where it takes them anyway."""

    def offered(self) -> list[str]:
        """The names of environments that were offered so."""
        return []

    def withdraw(self, name: str) -> None:
        """Have it know nothing of an environment any more that was offered."""
        raise not_offered(name)

    @abstractmethod
    def look(self, nodes: Collection[str]) -> dict[str, Seen]:
        """How these stand; those that the batch system does not know are left out."""

    def remark(self, node: str) -> str:
        """What may not be meant so, of a node that has joined; empty: nothing."""
        return ""

    def send_on(self, nodes: Mapping[str, str]) -> None:  # noqa: B027
        """Have jobs go elsewhere that the batch system has sent to these, and that cannot run
        there. `nodes`: with the environment of each. Not needed where it sends none."""

    @abstractmethod
    def close(self, node: str, reason: str) -> None:
        """Have no more jobs sent there. Those that run go on."""

    @abstractmethod
    def remove(self, node: str) -> None:
        """Have the batch system forget a node that is closed. Refused while it has a job; one that
        is not known is no mistake."""

    @abstractmethod
    def lost(self, node: str) -> None:
        """The machine is gone: what ran there goes back to the queue, and the node is removed."""

    def not_coming(self, node: str) -> None:  # noqa: B027
        """No machine came about for a node: tell a batch system that has asked for it and waits.
        Not needed where none asks."""

    def setting(self, name: str, default: str) -> str:
        """Where something of the batch system's is, as batch.yaml says."""
        return self.settings.programs.get(name, default)


def taken(node: str, system: str, why: str) -> EncampError:
    return EncampError(
        Code.WRONG_STATE,
        f"{system} has a node {node} already: {why}.",
        "Give the machine another name with --name. Hosts that have nodes must not share addresses"
        " of a bridge.",
    )


def not_offered(name: str) -> EncampError:
    return EncampError(
        Code.INPUT_MISSING,
        f"Environment '{name}' is not offered to the batch system.",
        "'encamp batch offer' without a name lists those that are.",
    )


def listens(address: str, port: int) -> bool | None:
    """Is a daemon there? None: nobody can say."""
    try:
        socket.create_connection((address, port), LISTENS).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return None
    return True


def refused(node: str, why: str) -> EncampError:
    return EncampError(
        Code.WRONG_STATE,
        f"Node {node} cannot leave its batch system yet: {why}.",
        "It leaves when its last job has ended.",
        transient=True,
    )
