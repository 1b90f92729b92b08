"""The errors that every bus raises, and how a handler's own error travels to whoever asked."""

from __future__ import annotations

import msgspec

from encamp.bus.bus import LARGEST_MESSAGE
from encamp.model.errors import Code, EncampError
from encamp.model.site import MANAGER


def _unreachable(sentence: str, hint: str) -> EncampError:
    return EncampError(Code.UNREACHABLE, sentence, hint, transient=True)


def not_there(name: str) -> EncampError:
    return _unreachable(
        f"There is no '{name}' on the bus.",
        "Is its daemon running? 'encamp hosts' shows who is there.",
    )


def not_taken(name: str, seconds: float) -> EncampError:
    return _unreachable(
        f"'{name}' did not take a message within {seconds:g} s.",
        "It is busy, or the network between is slow; try again.",
    )


def not_answered(name: str, seconds: float) -> EncampError:
    return _unreachable(
        f"'{name}' has not answered within {seconds:g} s.",
        "What it was asked may still be done.",
    )


def gone(name: str) -> EncampError:
    return _unreachable(
        f"'{name}' has gone before it answered.",
        "What it was asked may have been done.",
    )


def closed(name: str) -> EncampError:
    return EncampError(Code.WRONG_STATE, f"'{name}' is not on the bus any more.")


def name_taken(name: str) -> EncampError:
    if name == MANAGER:
        return EncampError(
            Code.WRONG_STATE,
            "This site has a manager already.",
            "A site has one that leads: stop the other first, here or on another host. A second one"
            " stands by if both have the same store, in PostgreSQL.",
        )
    return EncampError(
        Code.WRONG_STATE,
        f"There is another '{name}' on the bus already.",
        "Every participant needs a name of its own: see 'host' in site.yaml.",
    )


class OutrankedError(EncampError):
    """Another of a higher rank has our name now."""


def outranked(name: str) -> OutrankedError:
    return OutrankedError(
        Code.WRONG_STATE,
        f"A later '{name}' has taken the place of this one on the bus.",
        transient=True,
    )


def broken(name: str, part: str) -> EncampError:
    return EncampError(
        Code.INTERNAL,
        f"'{name}' cannot go on: the {part} came to an unexpected end.",
        "This is a mistake in Encamp. The log says more; the daemon can be started again.",
    )


def mistake(name: str) -> EncampError:
    return EncampError(
        Code.INTERNAL,
        f"'{name}' made a mistake with what it was asked.",
        "Its log says which.",
    )


def answer_too_large(name: str, size: int) -> EncampError:
    return EncampError(
        Code.INTERNAL,
        f"The answer of '{name}' has {size:,} bytes, too much for the bus.",
        f"The largest message has {LARGEST_MESSAGE:,}.",
    )


def check_size(body: bytes) -> None:
    if len(body) > LARGEST_MESSAGE:
        raise EncampError(
            Code.USAGE,
            f"A message of {len(body):,} bytes is too large for the bus.",
            f"The largest has {LARGEST_MESSAGE:,}.",
        )


class _Refusal(msgspec.Struct, frozen=True, array_like=True):
    code: str
    sentence: str
    hint: str
    transient: bool
    detail: str


_decoder = msgspec.msgpack.Decoder(_Refusal)


def pack(error: EncampError) -> bytes:
    """An error as it travels. What others said in it can be long; the bus takes no more than
    a message's worth."""
    short = LARGEST_MESSAGE // 16
    return msgspec.msgpack.encode(
        _Refusal(
            error.code.name,
            error.sentence[:short],
            error.hint[:short],
            error.transient,
            error.detail[-short:],
        )
    )


def unpack(data: bytes, sender: str) -> EncampError:
    try:
        refusal = _decoder.decode(data)
        code = Code[refusal.code]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
        return EncampError(Code.PROTOCOL, f"'{sender}' answered with something that is no error.")
    return EncampError(
        code, refusal.sentence, refusal.hint, transient=refusal.transient, detail=refusal.detail
    )
