"""What an installation changes, as data: each change knows what was there, and how to recognise
what it put there. Whatever is neither of both was put there by somebody else."""

from __future__ import annotations

import enum
import hashlib

import msgspec


class State(enum.Enum):
    """How a change stands."""

    BEFORE = "before"
    """Not made, or undone."""
    AFTER = "after"
    """Made, and still as it was made."""
    OTHER = "other"
    """Somebody else has been there since."""


class _Change(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag=str.lower
):
    ours: tuple[str, ...] = ()
    """Digests of all that was ever put there by an installation."""


class Directory(_Change, frozen=True, kw_only=True):
    """A directory that was not there."""

    path: str

    @property
    def key(self) -> str:
        return f"directory {self.path}"


class File(_Change, frozen=True, kw_only=True):
    """A file of Encamp's own. What was at its path before is kept beside it."""

    path: str
    mode: int = 0o644
    after: bytes = b""
    """What is to stand there; not written down, but for its digest."""
    aside: str = ""
    """Where the site's own file of this name is from now on; nowhere, if there was none."""
    watched: bool = False
    """Is it read again only when its time, in seconds, is later than when it was read?"""
    begun: bool = False
    """Is it only a beginning, for the administrator to change? Then it stays, once it is."""

    @property
    def key(self) -> str:
        return f"file {self.path}"


class Edit(_Change, frozen=True, kw_only=True):
    """A line in a file that is somebody else's; the rest of it may go on changing."""

    path: str
    before: bytes | None
    """The whole file; None: there was none."""
    after: bytes = b""
    removed: str = ""
    """The line that was there, all of it; nothing: there was none."""
    added: str

    @property
    def key(self) -> str:
        return f"line {self.path} {self.added}"


class Object(_Change, frozen=True, kw_only=True):
    """Something that a batch system's own command reads and writes."""

    sort: str
    """`complex`, `queue`, ..."""
    name: str
    attribute: str
    """What of it; empty: all."""
    before: str
    after: str
    surroundings: dict[str, str] = {}
    """The variables that lead to that batch system."""

    @property
    def key(self) -> str:
        return f"object {self.sort} {self.name} {self.attribute}"


Change = Directory | File | Edit | Object


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done, and what is not Encamp's to do."""

    system: str
    changes: tuple[Change, ...] = ()
    """In the order they are made."""
    left: tuple[str, ...] = ()
    """What remains to the administrator, a sentence each."""
    warnings: tuple[str, ...] = ()


class Kept(msgspec.Struct, frozen=True):
    """A change that was not undone."""

    change: Change
    reason: str


class Installed(msgspec.Struct, frozen=True, kw_only=True):
    """What was changed, so that it can be undone."""

    system: str
    version: str
    when: float
    changes: tuple[Change, ...] = ()


def digest(content: bytes | str) -> str:
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()


def merged(former: tuple[Change, ...], planned: tuple[Change, ...]) -> tuple[Change, ...]:
    """What is to be written down before the planned changes are made on top of former ones: the
    first state of everything, and all that was put there since."""
    kept = {change.key: change for change in former}
    for change in planned:
        known = kept.get(change.key)
        kept[change.key] = _recorded(change) if known is None else _on_top(known, change)
    return tuple(kept.values())


def _on_top(known: Change, change: Change) -> Change:
    made = _recorded(change)
    ours = tuple(dict.fromkeys((*known.ours, *made.ours)))
    if isinstance(change, Edit):
        return msgspec.structs.replace(made, ours=ours)  # The line had been taken out again.
    if isinstance(change, Object):
        return msgspec.structs.replace(known, ours=ours, after=change.after)
    return msgspec.structs.replace(known, ours=ours)


def _recorded(change: Change) -> Change:
    match change:
        case Directory():
            return change
        case File():
            return msgspec.structs.replace(change, ours=(digest(change.after),), after=b"")
        case Edit():
            return msgspec.structs.replace(change, ours=(digest(change.after),), after=b"")
        case Object():
            return msgspec.structs.replace(change, ours=(digest(change.after),))
