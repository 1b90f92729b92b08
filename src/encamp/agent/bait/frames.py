"""What a job's starter and this host say to each other, through a Unix socket.

Frames: the length of what it holds (u32, little endian), one letter that says which kind it is, and
what it holds. The starter begins with its job, and only that is long.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from encamp.model.batch import ENVIRONMENT
from encamp.model.errors import Code, EncampError

HEADER = struct.Struct("<IB")
FIELD = struct.Struct("<BI")
LIMIT = struct.Struct("<BQQ")
U32 = struct.Struct("<I")
CALL_END = struct.Struct("<IBB")

LARGEST = 8 << 20
"""Bytes of a job: its script, arguments and variables;"""
MOST_FIELDS = 1 << 17
"""and how many of these there are. The kernel takes about as many, if they are of the usual
length, and reading them takes a while."""
VERSION = 1
INFINITE = (1 << 64) - 1
LIMITS = 16
"""Kinds of limits that Linux has."""
LONGEST_TEXT = 4000
"""Characters of a sentence to a starter."""

JOB, SIGNAL, CALL_ENDED = ord("J"), ord("S"), ord("X")
ACCEPTED, BEGUN, ENDED, PLAIN = ord("A"), ord("B"), ord("E"), ord("P")
AGAIN, GIVEN_BACK, FAILED, NOTE = ord("T"), ord("G"), ord("F"), ord("N")
CALL, CALL_SIGNAL, OVER = ord("C"), ord("K"), ord("D")
CROWDED, MISTAKEN = ord("W"), ord("M")

NAME = re.compile(ENVIRONMENT)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a starter asks for. It is the word of the job's user, and of nobody else."""

    system: str
    environment: str = ""
    """Empty: none was named."""
    arguments: tuple[bytes, ...] = ()
    script: bytes | None = None
    """What the script says; None: the arguments are a command."""
    script_name: str = ""
    start: tuple[bytes, ...] = ()
    """Words to start the script with, if not by its own first line."""
    variables: dict[str, str] = {}
    directory: str = "/"
    umask: int = 0o022
    limits: tuple[tuple[int, int, int], ...] = ()
    """Number, soft and hard limit of each kind."""
    id: str = ""
    """The job's, as its variables say."""
    tries: int = 0
    """How often it came before."""
    lost: bool = False
    """It had begun, and whoever carried it out is gone."""
    over: int = 0
    """Nothing is to be run: its starter, which was this process, was killed, and who asks keeps
    that from the batch system until it is known what becomes of the job."""


# ── what a starter says ──────────────────────────────────────────────────────────────────────────


def read_job(payload: bytes) -> Asked:
    """Raises EncampError if it makes no sense."""
    single: dict[int, bytes] = {}
    arguments: list[bytes] = []
    start: list[bytes] = []
    variables: dict[str, str] = {}
    limits: list[tuple[int, int, int]] = []
    for tag, value in _fields(payload):
        match tag:
            case 0x61:  # a
                arguments.append(value)
            case 0x72:  # r
                start.append(value)
            case 0x6D:  # m
                name, equals, text = value.partition(b"=")
                if equals and name:
                    # Of two with one name the first counts, as for getenv.
                    variables.setdefault(os.fsdecode(name), os.fsdecode(text))
            case 0x6C:  # l
                limits.append(_limit(value))
            case _ if chr(tag) in "vsepnwuitbo" and tag not in single:
                single[tag] = value
            case _:
                raise senseless(f"a field {tag} that is unknown, or there twice")
    if single.get(ord("v")) != bytes([VERSION]):
        raise EncampError(
            Code.PROTOCOL,
            f"The starter speaks another version of the protocol than this agent, {VERSION}.",
            "Install starter and agent of one version of Encamp.",
        )
    script = single.get(ord("p"))
    over = _number(single, "o", U32.size, 0)
    if script is None and not arguments and not over:
        raise senseless("nothing to run")
    if any(b"\0" in value for tag, value in single.items() if chr(tag) in "senwi"):
        raise senseless("a zero byte")
    if any(b"\0" in one for one in (*arguments, *start)) or any(
        "\0" in name + text for name, text in variables.items()
    ):
        raise senseless("a zero byte")
    environment = single.get(ord("e"), b"").decode("ascii", "replace")
    if environment and NAME.fullmatch(environment) is None:
        raise EncampError(Code.USAGE, f"{environment[:80]!r} cannot be an environment's name.")
    directory = os.fsdecode(single.get(ord("w"), b"/"))
    return Asked(
        system=_text(single, "s"),
        environment=environment,
        arguments=tuple(arguments),
        script=script,
        script_name=os.fsdecode(single.get(ord("n"), b"")),
        start=tuple(start),
        variables=variables,
        directory=directory if directory.startswith("/") else "/",
        umask=_number(single, "u", U32.size, 0o022) & 0o777,
        limits=tuple(limits),
        id=_text(single, "i"),
        tries=_number(single, "t", 1, 0),
        lost=_number(single, "b", 1, 0) != 0,
        over=over,
    )


def _fields(payload: bytes) -> Iterator[tuple[int, bytes]]:
    at = count = 0
    while at < len(payload):
        count += 1
        if count > MOST_FIELDS:
            raise too_large(f"more than {MOST_FIELDS} arguments and variables")
        if len(payload) - at < FIELD.size:
            raise senseless("half a field")
        tag, length = FIELD.unpack_from(payload, at)
        at += FIELD.size
        if length > len(payload) - at:
            raise senseless("half a field")
        yield tag, payload[at : at + length]
        at += length


def _limit(value: bytes) -> tuple[int, int, int]:
    if len(value) != LIMIT.size:
        raise senseless("a limit of the wrong size")
    number, soft, hard = LIMIT.unpack(value)
    if number >= LIMITS or soft > hard:
        raise senseless("a limit that cannot be")
    return number, soft, hard


def _text(single: dict[int, bytes], tag: str) -> str:
    text = single.get(ord(tag), b"").decode("ascii", "replace")
    if len(text) > 200 or not text.isprintable():
        raise senseless("a name that cannot be one")
    return text


def _number(single: dict[int, bytes], tag: str, size: int, default: int) -> int:
    value = single.get(ord(tag))
    if value is None:
        return default
    if len(value) != size:
        raise senseless("a number of the wrong size")
    return int.from_bytes(value, "little")


def too_large(how: str) -> EncampError:
    return EncampError(
        Code.USAGE,
        f"Its script, arguments and variables are too long: {how}.",
        "Put what is long into files.",
    )


def senseless(what: str) -> EncampError:
    return EncampError(Code.PROTOCOL, f"The starter said what makes no sense: {what}.")


# ── what it is told ──────────────────────────────────────────────────────────────────────────────


def frame(kind: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(len(payload), kind) + payload


def accepted(id: str) -> bytes:
    return frame(ACCEPTED, _said(id))


def begun() -> bytes:
    return frame(BEGUN)


def over() -> bytes:
    """Its command has ended. With what is told when nothing of it is left."""
    return frame(OVER)


def ended(*, code: int | None = None, signal: int = 0) -> bytes:
    """With an exit code, or by a signal."""
    return frame(ENDED, bytes([0, code] if code is not None else [1, signal]))


def plain() -> bytes:
    return frame(PLAIN)


def again(seconds: float, why: str) -> bytes:
    return _again(AGAIN, seconds, why)


def crowded(seconds: float, why: str) -> bytes:
    """Come again, however often: nothing was tried yet."""
    return _again(CROWDED, seconds, why)


def mistaken(seconds: float, why: str) -> bytes:
    """Come again, but not for ever: it is no fault of the job's, nor of a machine for it."""
    return _again(MISTAKEN, seconds, why)


def _again(kind: int, seconds: float, why: str) -> bytes:
    return frame(kind, U32.pack(int(seconds * 1000)) + _said(why))


def given_back(exit_code: int, why: str, *, wait: bool) -> bytes:
    return frame(GIVEN_BACK, bytes([exit_code, wait]) + _said(why))


def failed(exit_code: int, why: str) -> bytes:
    return frame(FAILED, bytes([exit_code]) + _said(why))


def note(text: str) -> bytes:
    return frame(NOTE, _said(text))


def call(number: int) -> bytes:
    """Begin a command of the batch system's. With it go its streams, and a file of its words."""
    return frame(CALL, U32.pack(number))


def call_words(
    program: str, words: Iterable[bytes], variables: Mapping[str, str], directory: bytes
) -> bytes:
    fields = [("x", os.fsencode(program)), ("w", directory)]
    fields += [("a", word) for word in words]
    fields += [("m", os.fsencode(f"{name}={text}")) for name, text in variables.items()]
    return b"".join(FIELD.pack(ord(tag), len(value) + 1) + value + b"\0" for tag, value in fields)


def call_signal(number: int, signal: int) -> bytes:
    return frame(CALL_SIGNAL, U32.pack(number) + bytes([signal]))


def _said(text: str) -> bytes:
    """As it may be shown on anybody's terminal."""
    shown = "".join(one if one.isprintable() else " " for one in text[:LONGEST_TEXT])
    return shown.encode(errors="replace")


class Listening:
    """Takes what a starter says after its job apart, as it comes."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self.ended: list[tuple[int, int, int]] = []
        """Calls that have ended, for whoever takes them: number, how, and with what."""

    def feed(self, data: bytes) -> list[tuple[int, bool]]:
        """Signals that it has passed on, and whether each was for the command alone, and not for
        all that it has started."""
        self._rest += data
        signals = []
        while len(self._rest) >= HEADER.size:
            length, kind = HEADER.unpack_from(self._rest)
            if kind == CALL_ENDED and length == CALL_END.size:
                if len(self._rest) < HEADER.size + length:
                    break
                self.ended.append(CALL_END.unpack_from(self._rest, HEADER.size))
                del self._rest[: HEADER.size + length]
                continue
            if kind != SIGNAL or length not in (1, 2):
                raise senseless(f"a frame of kind {kind} with {length} bytes")
            if len(self._rest) < HEADER.size + length:
                break
            alone = length == 2 and self._rest[HEADER.size + 1] != 0
            signals.append((self._rest[HEADER.size], alone))
            del self._rest[: HEADER.size + length]
        return signals
