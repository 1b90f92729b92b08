"""Letting in those who come to a conversation on its host: only with the right ticket."""

from __future__ import annotations

import asyncio

from encamp.door.frames import Failure
from encamp.meeting.flow import Bell, Incoming, Source
from encamp.meeting.frames import (
    LARGEST_SHOW,
    STDERR,
    STDOUT,
    Ended,
    Failed,
    Refused,
    Role,
    Show,
    Signal,
    Want,
    decode_from_client,
    senseless,
)
from encamp.meeting.kept import Kept
from encamp.meeting.line import Line
from encamp.meeting.tickets import matches
from encamp.meeting.visitor import RESPONSIBLE, Visitor
from encamp.model.errors import Code, EncampError

MOST_VISITORS = 32
PATIENCE = 10.0
"""Seconds within which whoever comes has to show a ticket."""


class Reception:
    """What there is to see, and those who are there to see it."""

    def __init__(self, digest: str) -> None:
        self.changed = Bell()
        self.incoming: dict[int, Incoming] = {}
        self.sources: dict[int, Source] = {}
        self.wanted: dict[int, Want] = {}
        self.has_begun = False
        self.final: Ended | Failed | None = None
        self.signals = 0
        self.visitors: set[Visitor] = set()
        self._digest = digest

    async def take(self, line: Line, show: Show | None = None) -> None:
        """Speak with one who has come, until one of the two goes."""
        try:
            if show is None:
                async with asyncio.timeout(PATIENCE):
                    show = await shown(line)
            self._check(show)
        except EncampError as error:
            line.send(Refused(Failure.of(error)))
            await line.close()
            return
        except (OSError, EOFError, TimeoutError):
            line.abort()
            return
        visitor = Visitor(self, line, show)
        visitor.welcome()
        self.visitors.add(visitor)
        self.came(visitor, show)
        try:
            await visitor.run()
        except BaseException:
            line.abort()
            raise
        finally:
            self.visitors.discard(visitor)
            if visitor.fetched:
                self.fetched()
            self.left(visitor)
            self.changed.ring()

    def _check(self, show: Show) -> None:
        if not matches(self._digest, show.secret):
            raise wrong_ticket()
        self.check(show)
        if show.role not in RESPONSIBLE and len(self.visitors) >= MOST_VISITORS:
            raise EncampError(
                Code.NO_ROOM, f"{MOST_VISITORS} read what this job prints already.", transient=True
            )

    # ── what differs ─────────────────────────────────────────────────────────────────────────────

    def check(self, show: Show) -> None:
        """Refuse one whose ticket is right, but who comes for what there is not."""

    def came(self, visitor: Visitor, show: Show) -> None:
        pass

    def left(self, visitor: Visitor) -> None:
        pass

    def fetched(self) -> None:
        """Somebody has put away all files that a detached job left."""

    def signal(self, signal: Signal) -> None:
        pass

    def resize(self, rows: int, columns: int) -> None:
        pass


class Remains(Reception):
    """What is left of a detached job that is over."""

    def __init__(self, digest: str, kept: Kept, final: Ended | Failed) -> None:
        super().__init__(digest)
        self._kept = kept
        self.has_begun = True
        self.final = final
        for number in (STDOUT, STDERR, *kept.files()):
            found = kept.find(number)
            if found is not None:
                self.sources[number] = found

    def check(self, show: Show) -> None:
        if show.role is Role.RUN:
            raise EncampError(Code.WRONG_STATE, "This job is over.")

    def fetched(self) -> None:
        self._kept.note_fetched()


async def shown(line: Line) -> Show:
    """What somebody shows who has come. It is not to be trusted before its secret was compared."""
    said = decode_from_client(await line.receive(LARGEST_SHOW))
    if not isinstance(said, Show):
        raise senseless("The client", "no ticket")
    return said


def wrong_ticket() -> EncampError:
    return EncampError(
        Code.NOT_PERMITTED,
        "The ticket opens nothing here.",
        "It may have been given for an earlier attempt of the job.",
    )
