"""A policy: how a site shares its hosts between those who want machines."""

from __future__ import annotations

import enum

import msgspec

from encamp.model.size import MIB


class Per(enum.Enum):
    """Whose machines a limit counts together."""

    OWNER = "owner"
    ALL = "all"


class Limit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """At most so much at a time, counting machines that are on their way in or out."""

    name: str
    """As it is called in answers to `why`."""
    owners: tuple[str, ...] = ("*",)
    """Patterns of users' names, `@group` for groups of users: whose machines are counted."""
    environments: tuple[str, ...] = ("*",)
    """Patterns of environments' names: machines of which are counted."""
    classes: tuple[str, ...] = ()
    """Only environments of one of these classes; none: of any."""
    per: Per = Per.OWNER
    machines: int | None = None
    cpus: int | None = None
    memory: int | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    rank: tuple[str, ...] = ("ready", "pack")
    """What hosts are sorted by after the request's own rank: names of ranks, or expressions."""
    overcommit: float = 1.0
    """Processors promised for each one that a host has."""
    memory_reserve: int = 512 * MIB
    """Bytes of each host's memory that machines do not get, at most an eighth of it."""
    disk_reserve: int = 1024 * MIB
    shares: dict[str, float] = {}
    """How much more than others some owners get when not all can: by name, or `@group`; 1 for all
    that are not named."""
    half_life: float = 86_400.0
    """Seconds after which what somebody has used counts half."""
    aging: float = 3_600.0
    """Seconds of waiting after which a request comes before newer ones, whoever has used less."""
    limits: tuple[Limit, ...] = ()
    pause: float = 15.0
    """Seconds for which a host is spared an environment that has just failed there; doubled by each
    further failure, up to"""
    longest_pause: float = 3_600.0
    tries: int = 8
    """How often the machines of a request may fail to be made, on whatever hosts, before it has
    failed."""
    claim: float = 30.0
    """Seconds for which a host keeps its promise."""
    patience: float = 600.0
    """Seconds for which a lost host with a job on it is waited for, before the job is lost."""
    reservation: float = 300.0
    """Seconds after which room is kept free for the first in the queue, so that many small requests
    cannot hold up a large one for ever."""
    queued: int = 100_000
    """Requests that one owner may have in the queue and under way."""
