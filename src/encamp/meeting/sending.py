"""Sending streams over one connection, each from where the other side is in it."""

from __future__ import annotations

from encamp.meeting.flow import Incoming, Source
from encamp.meeting.frames import PIECE, WINDOW, Broken, EndOf, Failure, Got, Piece, senseless
from encamp.meeting.line import Line
from encamp.model.errors import Code, EncampError


class Sender:
    def __init__(self, line: Line, number: int, source: Source, position: int) -> None:
        self._line = line
        self._number = number
        self._source = source
        self._position = position
        self._got = 0

    def got(self, offset: int) -> None:
        if offset > self._position:
            raise senseless("The other side", "thanks for what it was never sent")
        self._got = max(self._got, offset)
        self._source.got(offset)

    @property
    def taken(self) -> bool:
        """Has the other side all of it, to its end?"""
        source = self._source
        return source.over and source.broken is None and self._got == source.end

    def refuse(self) -> None:
        """The other side takes no more."""
        self._source.refuse()

    async def run(self, *, to_the_end: bool = True) -> None:
        """Send it all, as it comes; or only what there is."""
        source = self._source
        last = None if to_the_end else source.end
        if self._position > source.end:
            raise senseless("The other side", "word of more than there is")
        while True:
            if self._position < source.start:
                self._position = self._skip()
            limit = self._got + WINDOW
            end = source.end if last is None else last
            if self._position < min(end, limit):
                most = min(PIECE, end - self._position, limit - self._position)
                data = source.read(self._position, most)
                self._line.send(Piece(self._number, self._position, data))
                self._position += len(data)
                await self._line.drained()
            elif self._position == last or (source.over and self._position == source.end):
                break
            else:
                await source.bell.wait()
        if source.broken is not None:
            self._line.send(Broken(self._number, Failure.of(source.broken)))
        else:
            self._line.send(EndOf(self._number, self._position))
        await self._line.drained()

    def _skip(self) -> int:
        """What is refused need not be sent; what was taken cannot be sent again."""
        if self._source.refused:
            return self._source.start
        raise EncampError(
            Code.WRONG_STATE,
            "What was printed before was taken by another client, and is gone.",
        )


def acknowledge(line: Line, streams: dict[int, Incoming]) -> None:
    """On a new connection: how much of each stream was taken. The other side waits for it."""
    for number, incoming in streams.items():
        if incoming.taken:
            line.send(Got(number, incoming.taken))
