"""One name, one participant: how two of them find out about each other, and which one gives way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from encamp.bus import refusals
from encamp.bus.frames import ANSWER, MESSAGE, UNRANKED, Kind, Reply, outranks
from encamp.model.errors import EncampError

CLAIM = 1.0
"""Seconds within which somebody who already has our name says so."""


class Naming:
    def __init__(
        self,
        name: str,
        run: int,
        *,
        probe: Callable[[float, Kind], Awaitable[Reply | None]],
        publish: Callable[[bytes], None],
        stop: Callable[[EncampError], None],
    ) -> None:
        """`probe` asks whoever has the name, `publish` answers one who does, `stop` gives way."""
        self._name = name
        self._run = run
        self._probe = probe
        self._publish = publish
        self._stop = stop
        self._is_claiming = False

    async def check(self) -> None:
        """Is somebody else there under our name? The server knows if not. One of a lower rank gives
        way at once, or does not answer."""
        kind = Kind.CLAIM if self._run < UNRANKED else Kind.PROBE
        refusal = self._refusal(await self._probe(CLAIM, kind))
        if refusal is not None:
            raise refusal

    async def claim(self) -> None:
        """Two may have come at once, or one while the other was cut off."""
        self._is_claiming = True
        try:
            refusal = self._refusal(await self._probe(CLAIM, Kind.CLAIM))
            if refusal is not None:
                self._stop(refusal)
        finally:
            self._is_claiming = False

    def _refusal(self, reply: Reply | None) -> EncampError | None:
        match reply:
            case Reply.HERE:
                return refusals.name_taken(self._name)
            case Reply.OUTRANKED:
                return refusals.outranked(self._name)
            case _:
                return None

    def answer(self, data: bytes) -> None:
        """Somebody else asks for our name. Of two who claim it at once, one gives way."""
        kind, run, number, _ = MESSAGE.unpack_from(data)
        reply = Reply.HERE
        if kind == Kind.CLAIM and outranks(run, self._run):
            reply = Reply.GIVEN
            self._stop(refusals.outranked(self._name))
        elif kind == Kind.CLAIM and outranks(self._run, run):
            reply = Reply.OUTRANKED
        elif kind == Kind.CLAIM and self._is_claiming and run < self._run:
            self._stop(refusals.name_taken(self._name))
            return
        self._publish(ANSWER.pack(reply, run, number, self._run))
