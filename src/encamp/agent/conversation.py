"""An agent's conversation with its manager: what it is told to do, and what it tells."""

from __future__ import annotations

import asyncio
import random

from encamp.agent.obeying import Obedience
from encamp.agent.telling import Facts, Teller
from encamp.agent.witness import Witness
from encamp.bus.bus import Bus, Message
from encamp.bus.messages import (
    Cancel,
    Claim,
    Execute,
    Query,
    Release,
    SayHello,
    Written,
    decode_from_manager,
)
from encamp.model.errors import Code, EncampError
from encamp.model.site import MANAGER

QUERIES = 64
"""So many queries are answered at a time; more are refused."""


class Conversation:
    def __init__(
        self,
        name: str,
        instance: str,
        facts: Facts,
        obedience: Obedience | None = None,
        witness: Witness | None = None,
    ) -> None:
        self._witness = witness
        self._name = name
        self._facts = facts
        self._obedience = obedience
        self._queries: set[asyncio.Task[None]] = set()
        self.teller = Teller(instance, facts)

    async def run(self, bus: Bus) -> None:
        """Until cancelled."""
        try:
            await self.teller.run(bus)
        finally:
            for task in self._queries:
                task.cancel()
            await asyncio.gather(*self._queries, return_exceptions=True)

    async def take(self, message: Message) -> bytes | None:
        """What the manager says. Nobody else has a say here."""
        if message.sender != MANAGER:
            raise EncampError(
                Code.NOT_PERMITTED, f"{message.sender} is not the manager of host {self._name}."
            )
        if self._obedience is not None:
            self._obedience.check(message.rank)
        said = decode_from_manager(message.body)
        match said:
            case Written():
                self._heard(said)
            case Execute():
                self._heard(said.written)
                await self._facts.execute(said)
            case Cancel():
                await self._facts.cancel(said.id)
            case Claim():
                await self._facts.claim(said)
            case Release():
                self._facts.release(said.id)
            case Query():
                self._query(said)
            case SayHello():
                self.teller.hello(said.within, said.manager)
        return None

    def _heard(self, written: Written | None) -> None:
        if self._witness is not None and written is not None:
            self._witness.heard(written)

    def _query(self, query: Query) -> None:
        if not query.fresh and not query.within and query.jobs is None:
            self._answer(query)
            return
        if len(self._queries) >= QUERIES:
            raise EncampError(
                Code.NO_ROOM,
                f"Host {self._name} is answering {QUERIES} queries already.",
                transient=True,
            )
        task = asyncio.create_task(self._read(query))
        self._queries.add(task)
        task.add_done_callback(self._queries.discard)

    async def _read(self, query: Query) -> None:
        if query.within:
            await asyncio.sleep(random.uniform(0, query.within))
        if query.jobs is not None:
            self.teller.answer_jobs(query.id, await self._facts.jobs(query.jobs))
        elif query.fresh:
            self.teller.answer(query.id, await self._facts.read(query.properties))
        else:
            self._answer(query)

    def _answer(self, query: Query) -> None:
        """With what was read on the last tick."""
        known = self._facts.readings()
        wanted = query.properties or known
        # Of what this host does not have there is nothing to tell.
        self.teller.answer(query.id, {name: known[name] for name in wanted if name in known})
