"""What stands before a message's body on its way over NATS, and how its receiver answers."""

from __future__ import annotations

import enum
import struct


class Kind(enum.IntEnum):
    """What somebody wants of another participant."""

    SEND = 1
    REQUEST = 2
    ASK = 3
    """What has become of the message with this number? Has no body."""
    PROBE = 4
    """Are you there? Answered by the bus itself."""
    CLAIM = 5
    """Is there another of my name? Said to that name, by one who already listens under it."""


class Reply(enum.IntEnum):
    """What has become of a message."""

    TAKEN = 1
    BUSY = 2
    """No room; ROOM will follow."""
    ROOM = 3
    RESULT = 4
    REFUSED = 5
    """An error, in place of a result."""
    UNKNOWN = 6
    """No such message has arrived."""
    HERE = 7
    """Answers a PROBE or a CLAIM."""
    ABSENT = 8
    """The server says it: nobody of that name is connected. Never on the wire."""
    GIVEN = 10
    """Answers a CLAIM of somebody with a higher rank: the name is theirs."""
    OUTRANKED = 11
    """The same to somebody with a lower rank."""
    RECONNECTED = 9
    """Our own connection was broken in the meantime. Never on the wire."""


MESSAGE = struct.Struct(">BQQQ")
"""Kind; which run of the sender it is; the message's number; below which number nothing is waited
for any more."""

ANSWER = struct.Struct(">BQQQ")
"""Reply; run of the asker; the message's number; run of whoever answers."""

LIFE = struct.Struct(">BQ")
"""Alive or leaving; which run. The groups follow, a space between two."""

LEAVING, ALIVE = 0, 1

UNRANKED = 1 << 63
"""Added to a run that is a random number. Others are their participant's rank: of two runs of one
name, the one with the higher rank counts."""
LINE = 40
"""Bits of a rank. Those above them say among whom it is one; others are not compared with it."""


def outranks(run: int, other: int) -> bool:
    return other < run < UNRANKED and other >> LINE == run >> LINE
