"""Frames of the guest protocol, put together and taken apart. No input or output happens here.

What comes from a machine is untrusted: whatever is not exactly as agreed raises an error.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable

import msgspec

from encamp.model.errors import Code, EncampError

VERSION = 1
MAGIC = 0xEC
PAYLOAD_LIMIT = 65536
WELCOME_LIMIT = 4096
NONCE_SIZE = 16
MACHINE_SIZE = 16
ENTROPY_LEAST = 32
CREDIT_START = 262144
CREDIT_BATCH = 65536
CREDIT_LIMIT = 1 << 30
"""No honest guest ever has this much room for stdin."""
CALL_BIT = 1 << 31
"""In the number of a stream that the guest has begun."""

HEADER = struct.Struct("<BBBBII")
FIELD = struct.Struct("<HI")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
WINDOW = struct.Struct("<HH")
LIMIT = struct.Struct("<IQQ")

FLUSH = bytes(PAYLOAD_LIMIT + HEADER.size)
"""Completes whatever frame a predecessor left half sent; the guest skips the rest of it."""


class Type(enum.IntEnum):
    HELLO = 1
    WELCOME = 2
    EXEC = 3
    DATA = 4
    END = 5
    CREDIT = 6
    SIGNAL = 7
    RESIZE = 8
    EXIT = 9
    MOUNT = 10
    USER = 11
    NETWORK = 12
    UNMOUNT = 13
    POWEROFF = 14
    DONE = 15
    PING = 16
    PONG = 17
    CALLS = 18
    CALL = 19
    GO = 20


class Key(enum.IntEnum):
    VERSION = 1
    NONCE = 2
    MACHINE = 3
    HOSTNAME = 4
    CLOCK = 5
    ENTROPY = 6
    PROGRAM = 7
    UPTIME = 8
    ARG = 9
    ENV = 10
    CWD = 11
    UID = 12
    GID = 13
    GROUPS = 14
    TTY = 15
    BUILTIN = 16
    KIND = 17
    VALUE = 18
    TEXT = 19
    TAG = 20
    PATH = 21
    READONLY = 22
    NAME = 23
    GROUP = 24
    HOME = 25
    SHELL = 26
    ADDRESS = 27
    PREFIX = 28
    GATEWAY = 29
    DNS = 30
    ERROR = 31
    EXACT = 32
    UMASK = 33
    LIMIT = 34
    MERGED = 35
    FILE = 36
    TEMPORARY = 37
    CALLER = 38
    TELLING = 39
    MAC = 40
    HOSTS = 41
    GROUP_NAMES = 42
    HELD = 43


STDIN, STDOUT, STDERR = 0, 1, 2

WHOLE, PART = 0, 1
"""The channel of an EXEC: all of it (or its last part), or a part that goes on."""

Bytes = bytes | bytearray | memoryview

Fields = dict[int, list[bytes]]


class Frame(msgspec.Struct, frozen=True, gc=False):
    type: int
    channel: int
    stream: int
    payload: bytes


def senseless(what: str) -> EncampError:
    return EncampError(
        Code.PROTOCOL,
        f"The machine's guest program sent what makes no sense: {what}.",
        "The machine may be damaged; destroy it and start another.",
    )


def header(type: int, channel: int, stream: int, length: int) -> bytes:
    return HEADER.pack(MAGIC, type, channel, 0, stream, length)


def encode(type: int, stream: int, payload: Bytes = b"", *, channel: int = 0) -> bytes:
    """One frame. The payload must fit into one."""
    content = bytes(payload)
    if len(content) > PAYLOAD_LIMIT:
        raise EncampError(
            Code.USAGE,
            f"A request of {len(content)} bytes is too long for the machine.",
            f"The limit is {PAYLOAD_LIMIT} bytes.",
        )
    return HEADER.pack(MAGIC, type, channel, 0, stream, len(content)) + content


def encode_fields(fields: Iterable[tuple[int, bytes]]) -> bytes:
    return b"".join(FIELD.pack(key, len(value)) + value for key, value in fields)


def decode_fields(payload: Bytes) -> Fields:
    """Fields by key, in order. Keys this version does not know are kept and harm nobody."""
    view = memoryview(payload)
    found: Fields = {}
    at = 0
    while at < len(view):
        if len(view) - at < FIELD.size:
            raise senseless("a field is cut short")
        key, length = FIELD.unpack_from(view, at)
        at += FIELD.size
        if length > len(view) - at:
            raise senseless("a field is longer than its frame")
        found.setdefault(key, []).append(bytes(view[at : at + length]))
        at += length
    return found


def only(fields: Fields, key: Key) -> bytes:
    values = fields.get(key, ())
    if len(values) != 1:
        raise senseless(f"{len(values)} fields {key.name} where one is due")
    return values[0]


def number(fields: Fields, key: Key, shape: struct.Struct = U32) -> int:
    value = only(fields, key)
    if len(value) != shape.size:
        raise senseless(f"field {key.name} has {len(value)} bytes")
    (unpacked,) = shape.unpack(value)
    return int(unpacked)


def text(fields: Fields, key: Key) -> str:
    """What a machine says may end on a terminal, so nothing in it may control one."""
    said = only(fields, key).decode(errors="replace")
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in said
    )


_PAYLOAD_SIZES = {
    Type.WELCOME: (0, WELCOME_LIMIT),
    Type.DATA: (1, PAYLOAD_LIMIT),
    Type.END: (0, 0),
    Type.CREDIT: (4, 4),
    Type.EXIT: (0, PAYLOAD_LIMIT),
    Type.DONE: (0, PAYLOAD_LIMIT),
    Type.PONG: (0, 0),
    Type.SIGNAL: (4, 4),
    Type.CALL: (0, PAYLOAD_LIMIT),
}
"""What a guest may send, with the least and most bytes of its payload."""

_CHANNELS = {
    Type.DATA: (STDOUT, STDERR),
    Type.END: (STDIN, STDOUT, STDERR),
    Type.CREDIT: (STDIN,),
}

_CALL_CHANNELS = {
    Type.DATA: (STDIN,),
    Type.END: (STDIN,),
    Type.CREDIT: (STDOUT, STDERR),
    Type.CALL: (WHOLE, PART),
    Type.SIGNAL: (0,),
    Type.EXIT: (0,),
}
"""In streams that the guest has begun, all that there is."""


def _channels(type: Type, stream: int) -> tuple[int, ...]:
    if stream & CALL_BIT:
        return _CALL_CHANNELS.get(type, ())
    return () if type in (Type.CALL, Type.SIGNAL) else _CHANNELS.get(type, (0,))


class Parser:
    """Takes a guest's bytes apart.

    Until the WELCOME that answers this session's own nonce has come, everything is skipped: it
    was meant for a predecessor, or for the template this machine was cloned from.
    """

    def __init__(self, nonce: bytes) -> None:
        self._nonce = nonce
        self._hunting = True
        self._space = bytearray(4 * (PAYLOAD_LIMIT + HEADER.size))
        self._start = 0
        self._end = 0

    @property
    def welcomed(self) -> bool:
        return not self._hunting

    def feed(self, data: Bytes) -> list[Frame]:
        """Take bytes in, give whole frames out."""
        view = memoryview(data).cast("B")
        frames: list[Frame] = []
        while view:
            room = self.room()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            view = view[count:]
            frames += self.advance(count)
        return frames

    def room(self) -> memoryview:
        """Where the next bytes may be received; say how many came with `advance`."""
        return memoryview(self._space)[self._end :]

    def advance(self, count: int) -> list[Frame]:
        self._end += count
        frames: list[Frame] = []
        if self._hunting:
            welcome = self._hunt()
            if welcome is not None:
                frames.append(welcome)
        if not self._hunting:
            self._take(frames)
        left = self._end - self._start
        if self._start and left < self._start:
            # What is left is less than a frame, so this copies little, and seldom.
            self._space[:left] = self._space[self._start : self._end]
            self._start, self._end = 0, left
        return frames

    def _take(self, frames: list[Frame]) -> None:
        space = memoryview(self._space)
        at, end = self._start, self._end
        while end - at >= HEADER.size:
            magic, type, channel, zero, stream, length = HEADER.unpack_from(space, at)
            if magic != MAGIC or zero:
                raise senseless("a frame does not start like one")
            sizes = _PAYLOAD_SIZES.get(type)
            if sizes is None:
                raise senseless(f"frame type {type}")
            if not sizes[0] <= length <= sizes[1]:
                raise senseless(f"a {Type(type).name} of {length} bytes")
            if channel not in _channels(type, stream):
                raise senseless(f"a {Type(type).name} on channel {channel}")
            after = at + HEADER.size + length
            if after > end:
                break
            if type == Type.WELCOME:
                raise senseless("a second WELCOME")
            frames.append(Frame(type, channel, stream, space[at + HEADER.size : after].tobytes()))
            at = after
        self._start = at

    def _hunt(self) -> Frame | None:
        """Look for the WELCOME. Chance matches are passed over a byte at a time.

        A candidate that is still incomplete does not stop the search behind it.
        """
        mark = HEADER.pack(MAGIC, Type.WELCOME, 0, 0, 0, 0)[:8]
        keep = max(self._start, self._end - len(mark) + 1)
        at = self._space.find(mark, self._start, self._end)
        while at >= 0:
            left = self._end - at - HEADER.size
            if left < 0:
                keep = min(keep, at)
            else:
                (length,) = U32.unpack_from(self._space, at + 8)
                if length <= left and self._is_ours(at + HEADER.size, length):
                    after = at + HEADER.size + length
                    self._start = after
                    self._hunting = False
                    payload = bytes(self._space[at + HEADER.size : after])
                    return Frame(Type.WELCOME, 0, 0, payload)
                if left < length <= WELCOME_LIMIT:
                    keep = min(keep, at)
            at = self._space.find(mark, at + 1, self._end)
        self._start = keep
        return None

    def _is_ours(self, at: int, length: int) -> bool:
        if length > WELCOME_LIMIT:
            return False
        try:
            fields = decode_fields(memoryview(self._space)[at : at + length])
            return only(fields, Key.NONCE) == self._nonce
        except EncampError:
            return False
