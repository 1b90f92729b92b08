"""An event: something that happened on a site, worth telling."""

from __future__ import annotations

import enum

import msgspec

from encamp.model.property import Value


class EventKind(enum.Enum):
    MANAGER_STARTED = "manager started"
    HOST_JOINED = "host joined"
    HOST_LEFT = "host left"
    HOST_LOST = "host lost"
    HOST_REFUSED = "host refused"
    """Two agents with one name, a version that cannot be spoken with, ..."""
    HOST_TROUBLE = "host trouble"
    """It said something that makes no sense, or its clock is off; the site goes on."""
    PROPERTY_FAILED = "property failed"
    PROPERTY_RECOVERED = "property recovered"
    MACHINE_APPEARED = "machine appeared"
    MACHINE_CHANGED = "machine changed"
    MACHINE_GONE = "machine gone"
    COMMAND_ISSUED = "command issued"
    COMMAND_CHANGED = "command changed"
    REQUEST_SUBMITTED = "request submitted"
    REQUEST_STARTING = "request starting"
    """Hosts have promised to, and make its machines."""
    REQUEST_RUNNING = "request running"
    REQUEST_WAITING = "request waiting"
    """It has to wait again, after hosts had been chosen."""
    REQUEST_OVER = "request over"
    TRIGGERS_LOADED = "triggers loaded"
    TRIGGERS_REFUSED = "triggers refused"
    TRIGGER_FIRED = "trigger fired"
    TRIGGER_STOPPED = "trigger stopped"
    NOTIFICATION = "notification"
    """What a trigger was told to say."""
    HOST_SPARED = "host spared"
    """An environment has failed there, and is kept from it for a while."""
    STORE_TROUBLE = "store trouble"
    STORE_RESTORED = "store restored"
    """It was put back from a backup, or an administrator has said how to go on after that."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    number: int = 0
    """Counts up from one on each site; given by the store."""
    at: float = 0.0
    kind: EventKind
    sentence: str
    host: str = ""
    subject: str = ""
    """What it is about, if not the host: a machine's id, a command's, a property, a trigger."""
    facts: dict[str, Value] = {}
