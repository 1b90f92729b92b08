"""What a client and a host's side of a conversation say to each other.

Each frame is its length in four bytes and that much MessagePack. The client begins with `Show`, and
is answered by `Welcome` or `Refused`. From then on both say what they have to, in any order.

Bytes travel in numbered streams, either way: standard input, output and error, and an archive for
each of the files to be copied in or out. A `Piece` says where in its stream it belongs, and `Got`
how much of a stream was taken; nobody is more than `WINDOW` ahead of that. What was not got yet is
kept, so that a conversation goes on where it was when a connection breaks and another is made.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from encamp.door.frames import LENGTH, Failure, frame
from encamp.model.errors import Code, EncampError
from encamp.model.job import Outcome

WINDOW = 1 << 20
"""Bytes of a stream that may be under way at a time."""
PIECE = 64 << 10
"""Bytes of one piece at most."""
LARGEST = 1 << 20
"""Bytes of one frame at most."""
LARGEST_SHOW = 16 << 10
"""Bytes of the frame that a conversation begins with."""
MOST_FILES = 4096
"""Archives in each direction."""

STDIN, STDOUT, STDERR = 0, 1, 2
FIRST_FILES = 16


def files_in(number: int) -> int:
    """The stream with the archive of one of the job's inputs."""
    return FIRST_FILES + 2 * number


def files_out(number: int) -> int:
    """The stream with the archive of one of the job's outputs."""
    return FIRST_FILES + 2 * number + 1


def is_files_out(stream: int) -> bool:
    return stream >= FIRST_FILES and stream % 2 == 1


def file_number(stream: int) -> int:
    return (stream - FIRST_FILES) // 2


StreamNumber = Annotated[int, msgspec.Meta(ge=0, lt=FIRST_FILES + 2 * MOST_FILES)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Side = Annotated[int, msgspec.Meta(ge=1, le=0xFFFF)]


class Role(enum.Enum):
    """What somebody comes for."""

    RUN = "run"
    """Whoever runs it: gives it its input and files, and if they vanish, it ends."""
    BRING = "bring"
    """Brings the files of a detached job, and leaves when it has begun."""
    WATCH = "watch"
    """Reads the output of a detached job as far as there is any, and leaves."""
    FOLLOW = "follow"
    """Reads it until the job is over."""
    FETCH = "fetch"
    """Waits until the job is over and takes the files that it left."""


# ── from the client ──────────────────────────────────────────────────────────────────────────────


class Show(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """A ticket, and what the client has of each stream already."""

    id: Annotated[str, msgspec.Meta(max_length=200)]
    secret: Annotated[str, msgspec.Meta(max_length=200)]
    session: Annotated[str, msgspec.Meta(max_length=64)]
    """Chosen by the client: whoever shows the same one is the same client."""
    role: Role = Role.RUN
    has: Annotated[dict[StreamNumber, Offset], msgspec.Meta(max_length=256)] = {}
    window: tuple[Side, Side] | None = None
    """Rows and columns of its terminal, if it has one."""


class Signal(msgspec.Struct, frozen=True, tag=True, array_like=True):
    serial: int
    """Counts from one: what is said again after a break is done once."""
    number: Annotated[int, msgspec.Meta(ge=1, le=64)]


class Resize(msgspec.Struct, frozen=True, tag=True, array_like=True):
    rows: Side
    columns: Side


class Bye(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The client has all it came for, or wants no more: what it ran is over for it."""

    fetched: bool = False
    """It has put all files of a detached job where they belong: they need not be kept for long."""


# ── from the host ────────────────────────────────────────────────────────────────────────────────


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """The ticket is good. What the host has of the client's streams and signals already."""

    has: dict[int, int] = {}
    signals: int = 0
    """The serial of the latest one."""


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    failure: Failure


class Said(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What is being done, for whoever waits; `fraction` of it is done, if that is known."""

    what: str
    fraction: float | None = None


class Want(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Send the archive of an input, with this name for what is in it."""

    number: int
    name: str


class Began(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The command runs."""


class Ended(msgspec.Struct, frozen=True, tag=True, array_like=True):
    outcome: Outcome


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """It could not be run, or not to its end."""

    failure: Failure


# ── from either ──────────────────────────────────────────────────────────────────────────────────


class Piece(msgspec.Struct, frozen=True, tag=True, array_like=True):
    stream: StreamNumber
    offset: Offset
    data: Annotated[bytes, msgspec.Meta(max_length=PIECE)]


class EndOf(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A stream has come to its end, and is so long."""

    stream: StreamNumber
    length: Offset


class Got(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Of a stream, all up to there was taken."""

    stream: StreamNumber
    offset: Offset


class Enough(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Nobody takes any more of a stream."""

    stream: StreamNumber


class Broken(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A stream cannot be sent to its end."""

    stream: StreamNumber
    failure: Failure


class Gone(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Said by an agent that passes a conversation on: the client's connection has ended. It may
    come back within so many seconds."""

    grace: float


FromClient = Show | Signal | Resize | Bye | Piece | EndOf | Got | Enough | Broken | Gone
FromHost = (
    Welcome | Refused | Said | Want | Began | Ended | Failed | Piece | EndOf | Got | Enough | Broken
)

_from_client: msgspec.msgpack.Decoder[FromClient] = msgspec.msgpack.Decoder(FromClient)
_from_host: msgspec.msgpack.Decoder[FromHost] = msgspec.msgpack.Decoder(FromHost)


def decode_from_client(body: bytes) -> FromClient:
    try:
        return _from_client.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise senseless("The client", "something that makes no sense") from error


def decode_from_host(body: bytes) -> FromHost:
    try:
        return _from_host.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise senseless("The host", "something that makes no sense") from error


def senseless(who: str, what: str) -> EncampError:
    """What was said is not quoted: there may be a secret in it."""
    return EncampError(
        Code.PROTOCOL,
        f"{who} sent {what}.",
        "Use the same version of Encamp on both sides.",
    )


__all__ = ["LENGTH", "Failure", "frame"]
