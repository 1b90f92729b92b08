"""What the subjects of NATS are used for, and which of them a participant has a right to.

    to.RECEIVER.SENDER      a message for one participant
    re.ASKER.ANSWERER       what has become of a message
    all.GROUP.SENDER        a message for everybody in a group
    here.NAME               a sign of life, or a goodbye

The last name is always that of whoever publishes. The server lets a participant publish only where
the last name is its own, and so vouches for every sender.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from encamp.model.errors import Code, EncampError
from encamp.model.host import NAME

_NAME = re.compile(NAME)


def token(name: str) -> str:
    """A name as one word of a subject; NATS keeps the dot for itself."""
    if _NAME.fullmatch(name) is None:
        raise EncampError(
            Code.USAGE,
            f"'{name[:80]}' cannot be a name on the bus.",
            "Letters, digits, dots, dashes and underscores can.",
        )
    return name.replace(".", "=")


def name_of(last: str) -> str:
    return last.replace("=", ".")


def to(receiver: str, sender: str) -> str:
    return f"to.{token(receiver)}.{token(sender)}"


def answer(asker: str, answerer: str) -> str:
    return f"re.{token(asker)}.{token(answerer)}"


def group(name: str, sender: str) -> str:
    return f"all.{token(name)}.{token(sender)}"


def here(name: str) -> str:
    return f"here.{token(name)}"


def messages_for(name: str) -> str:
    return f"to.{token(name)}.*"


def answers_for(name: str) -> str:
    return f"re.{token(name)}.>"


def answers_of(name: str, answerer: str) -> tuple[str, ...]:
    """Of one participant only, and of the server that it is not there."""
    return answer(name, answerer), f"{answer(name, answerer)}.>"


def messages_for_group(name: str) -> str:
    return f"all.{token(name)}.*"


EVERYBODYS_LIFE = "here.*"


class Permissions(msgspec.Struct, frozen=True):
    """Subjects a participant may use; nothing else."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def permissions(
    name: str, groups: Iterable[str], *, speaks_to: Iterable[str], watches: bool = False
) -> Permissions:
    """What a participant needs. `speaks_to` names those it may address, `*` everybody and every
    group. Its own name is among them: that is how it finds out whether its name is taken."""
    me = token(name)
    addressed = [other if other == "*" else token(other) for other in speaks_to]
    publish = [f"here.{me}"]
    for other in dict.fromkeys([*addressed, me]):
        publish += [f"to.{other}.{me}", f"re.{other}.{me}"]
    if "*" in addressed:
        publish.append(f"all.*.{me}")
    subscribe = [messages_for(name), answers_for(name)]
    subscribe += [messages_for_group(each) for each in groups]
    if watches:
        subscribe.append(EVERYBODYS_LIFE)
    return Permissions(tuple(publish), tuple(subscribe))
