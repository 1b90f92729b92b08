"""How a question and its answer are written to the socket.

A frame is its length in four bytes and that much MessagePack. The one who asks sends one frame, a
question, and keeps the connection open for as long as it wants the answer. It is told that it was
heard, then the items of the answer, then that this was all, or what went wrong.
"""

from __future__ import annotations

import struct

import msgspec

from encamp.model.errors import Code, EncampError

LENGTH = struct.Struct(">I")

QUESTION, ANSWER = "application/vnd.encamp.question", "application/vnd.encamp.answer"
"""What a question, without its length, and the frames of an answer are called over HTTP."""

STANDS_BY = "Encamp-Stands-By"
"""The header by which a manager says that another one has to be asked."""
SOON = "soon"
"""Its value if that manager is about to lead itself."""

LARGEST_QUESTION = 1 << 20
LARGEST_ANSWER = 1 << 30
"""Bytes of one item: the manager is trusted by those who ask it, but not with all their memory."""


class Heard(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Somebody is there and works on it."""


class Item(msgspec.Struct, frozen=True, tag=True, array_like=True):
    kind: str
    """The name of its struct."""
    value: msgspec.Raw


class End(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """That was all."""


class Failure(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """An `EncampError`, taken apart."""

    code: Code
    sentence: str
    hint: str
    transient: bool
    detail: str

    @classmethod
    def of(cls, error: EncampError) -> Failure:
        return cls(error.code, error.sentence, error.hint, error.transient, error.detail)

    def error(self) -> EncampError:
        return EncampError(
            self.code, self.sentence, self.hint, transient=self.transient, detail=self.detail
        )


Part = Heard | Item | End | Failure
"""What an answer is made of."""

_encode = msgspec.msgpack.Encoder().encode
decode_part = msgspec.msgpack.Decoder(Part).decode


def frame(value: msgspec.Struct) -> bytes:
    try:
        body = _encode(value)
    except UnicodeEncodeError as error:
        raise EncampError(
            Code.USAGE,
            f"{error.object[max(0, error.start - 20) : error.end + 20]!a} is no text in UTF-8, and"
            " nothing else can be sent.",
            "Write names in UTF-8.",
        ) from error
    except OverflowError as error:
        raise EncampError(
            Code.USAGE, "A number is larger than anything that can be sent.", "Ask for less."
        ) from error
    return LENGTH.pack(len(body)) + body


def item(value: msgspec.Struct) -> bytes:
    if isinstance(value, Item):
        return frame(value)
    return frame(Item(type(value).__name__, msgspec.Raw(_encode(value))))
