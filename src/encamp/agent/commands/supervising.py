"""The agent's side of commands: takes them, has each carried out once, and tells how they do.

Nothing here is lost with the agent: what it knows of a command is on disk (directory.py), and the
processes that carry commands out (carry.py) do not need it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import TracebackType

import msgspec

from encamp.agent.commands.caretaker import Caretaker
from encamp.agent.commands.directory import ID, Request, Result, is_own
from encamp.agent.commands.intake import LONGEST_TIMEOUT, Intake
from encamp.agent.commands.offers import Offer, Offers
from encamp.agent.commands.own import OwnCommands
from encamp.agent.commands.records import Records
from encamp.agent.commands.starting import read_offers
from encamp.bus.messages import Claim, CommandNews, Execute
from encamp.describe import places
from encamp.home import Home
from encamp.model.command import CommandDefinition, CommandState
from encamp.model.errors import Code, EncampError

MOST_UNDER_WAY = 10_000
LONGEST_ISSUER = 300

NEWS_OUTPUT = 256 << 10
"""Bytes of output in one message, and"""
NEWS_PIECE = 64 << 10
"""of one command in it;"""
NEWS_COMMANDS = 200
"""commands in it;"""
NEWS_OVER = 20
"""and of those that are told again though they are over."""

FILES = ("commands.yaml", "commands.ini")

LOG = logging.getLogger(__name__)


class Commands:
    """All commands of one agent. `news` is called when `tell` has something to tell."""

    def __init__(self, home: Home, *, news: Callable[[], None]) -> None:
        self.home = home
        self.offers = Offers()
        self.definitions: tuple[CommandDefinition, ...] = ()
        """What this host offers. Another one when its administrator has changed that."""
        self._news = news
        self._records = Records(home)
        self._caretaker = Caretaker(home, self._records, news)
        self._tracked = self._caretaker.tracked
        self._intake = Intake(home, self._records, self._caretaker, news)
        self.own = OwnCommands(self._records, self._caretaker, self._intake)
        self._over: dict[str, Result] = {}
        """How those ended that the manager asks for though they are over: to be told again."""
        self._held = ExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._stamp: object = None
        self._reading = asyncio.Lock()
        self._next = 0
        """Which command the next message begins with."""

    async def __aenter__(self) -> Commands:
        with ExitStack() as held_now:
            self._records.prepare()
            held_now.enter_context(self._records.claimed())
            sign = held_now.enter_context(self._records.signs())
            await self.reload()
            self._caretaker.find_left()
            self._intake.claims.load()
            self._caretaker.own = self.own.got_on
            held_now.callback(self._caretaker.prepared.close)
            loop = asyncio.get_running_loop()
            loop.add_reader(sign, self._caretaker.signalled, sign)
            held_now.callback(loop.remove_reader, sign)
            self._tasks = [
                asyncio.create_task(self._caretaker.run(), name="commands"),
                asyncio.create_task(self._caretaker.recover(), name="recovery"),
            ]
            self._held = held_now.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """The commands go on; somebody else will look after them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._intake.close()
        self._held.close()

    # ── what the manager asks for ────────────────────────────────────────────────────────────────

    async def execute(self, message: Execute) -> None:
        """Take a command. It is on the disk when this returns. The same again changes nothing; how
        it ended is told again if it is over."""
        _check_id(message.id)
        _check_is_managers(message.id)
        if self._is_known(message.id):
            return
        await self._read_again()
        if await self._intake.arrival(message.id) or self._is_known(message.id):
            return
        offer = self.offers.find(message.name)
        if offer.claimed:
            self._intake.claims.check(message.id)
        await self._intake.take(self._request(message, offer))

    async def cancel(self, id: str) -> None:
        """Stop a command. One that is over stays as it is; one that has not come is not begun when
        it does. In any case its end is told."""
        _check_id(id)
        _check_is_managers(id)
        with suppress(EncampError):
            await self._intake.arrival(id)
        tracked = self._tracked.get(id)
        if tracked is not None:
            await self._intake.stop(tracked)
        elif not self._is_known(id):
            await self._intake.once(id, self._end_unknown(id))

    async def claim(self, message: Claim) -> None:
        """Keep room for a machine, which a command of the same id will make."""
        _check_is_managers(message.id)
        await self._intake.claim(message)

    def release(self, id: str) -> None:
        """A claim is not needed any more."""
        _check_id(id)
        _check_is_managers(id)
        self._intake.claims.release(id)

    def claims(self) -> tuple[str, ...]:
        """What was promised to the manager, and is not used yet."""
        return tuple(id for id in self._intake.claims.ids() if not is_own(id))

    def tell(self) -> tuple[CommandNews, ...]:
        """What to tell the manager next. Nothing of it is told for good before it is `taken`."""
        told = [_last_news(id, result) for id, result in list(self._over.items())[:NEWS_OVER]]
        room = NEWS_OUTPUT
        ids = list(self._tracked)
        # Each message begins where the last one ended: long outputs do not hold up the others.
        for index in (*range(self._next, len(ids)), *range(min(self._next, len(ids)))):
            if is_own(ids[index]):
                continue
            news = self._tracked[ids[index]].news(min(room, NEWS_PIECE))
            if news is None:
                continue
            room -= len(news.piece) + len(msgspec.msgpack.encode(news.value))
            if told and room < 0:
                self._next = index
                break
            told.append(news)
            if room <= 0 or len(told) == NEWS_COMMANDS:
                self._next = index + 1
                break
        return tuple(told)

    def taken(self, outputs: dict[str, int], told: tuple[CommandNews, ...]) -> None:
        """The manager has written down what it was told, and has so much of each output."""
        for news in told:
            self._over.pop(news.id, None)
            tracked = self._tracked.get(news.id)
            if tracked is None:
                continue
            tracked.taken(news, outputs.get(news.id, news.offset + len(news.piece)))
            if tracked.settled:
                self._caretaker.settle(tracked)

    def under_way(self) -> tuple[str, ...]:
        """Ids of commands that were taken, and whose end the manager does not know yet."""
        unsettled = (
            id for id, tracked in self._tracked.items() if not tracked.settled and not is_own(id)
        )
        return (*unsettled, *self._over)

    def process_of(self, id: str) -> int | None:
        """The process that carries a command out, if it was started here."""
        tracked = self._tracked.get(id)
        return None if tracked is None else tracked.child

    def start_again(self) -> None:
        """There is another manager, or it has forgotten us: tell it what it may not know."""
        for tracked in self._tracked.values():
            tracked.tell_again()

    async def reload(self) -> None:
        """Look again for plug-ins and listed programs. If what the administrator wrote is wrong,
        everything stays as it was."""
        async with self._reading:
            self._stamp = _stamp()
            try:
                offers = await asyncio.to_thread(read_offers)
            except (EncampError, OSError) as error:
                offers = Offers(trouble=f"This host's commands cannot be found out: {error}")
            for sentence in filter(None, (offers.trouble, *offers.broken)):
                LOG.warning("%s", sentence)
            if not offers.trouble or not self.offers.offers:
                self.offers = offers
                self._caretaker.at_once = offers.at_once
                self.definitions = offers.definitions
            self._news()

    # ── taking commands in ───────────────────────────────────────────────────────────────────────

    def _is_known(self, id: str) -> bool:
        """Was it taken before? If it is over, its end is told once more."""
        if id in self._tracked or id in self._over:
            return True
        if not self._records.is_over(id):
            return False
        self._over[id] = self._records.end_of(id)
        self._news()
        return True

    async def _end_unknown(self, id: str) -> None:
        """What may come yet has come too late."""
        reason = "It was cancelled before it came to this host."
        result = Result(state=CommandState.CANCELLED, reason=reason, ended=time.time())
        await asyncio.to_thread(self._records.end_unknown, id, result)
        self._over[id] = result
        self._news()

    async def _read_again(self) -> None:
        """The administrator's files count as they are now, for commands that come now."""
        if self._stamp != _stamp():
            await self.reload()

    def _request(self, message: Execute, offer: Offer) -> Request:
        if not (math.isfinite(message.timeout) and 0 < message.timeout <= LONGEST_TIMEOUT):
            raise EncampError(Code.USAGE, f"{message.timeout:g} seconds is no time limit.")
        if len(message.issuer) > LONGEST_ISSUER or not message.issuer.isprintable():
            raise EncampError(Code.USAGE, f"{message.issuer[:80]!r} cannot have issued it.")
        if len(self._tracked) >= MOST_UNDER_WAY:
            raise EncampError(
                Code.NO_ROOM,
                f"{MOST_UNDER_WAY} commands are waiting on this host already.",
                "Try again when some of them are done.",
                transient=True,
            )
        return Request(
            id=message.id,
            name=message.name,
            arguments=offer.check(message.arguments),
            issuer=message.issuer,
            timeout=message.timeout,
            received=time.time(),
            plugin=offer.plugin,
            program=offer.program,
            returns=offer.definition.returns,
            internal=offer.definition.internal,
        )


def _check_id(id: str) -> None:
    if ID.fullmatch(id) is None:
        raise EncampError(Code.USAGE, f"{id[:80]!r} cannot be a command's id.")


def _check_is_managers(id: str) -> None:
    if is_own(id):
        raise EncampError(Code.NOT_PERMITTED, f"{id[:80]!r} is the agent's own.")


def _last_news(id: str, result: Result) -> CommandNews:
    """How a command ended whose output is not here any more."""
    return CommandNews(
        id=id,
        state=result.state,
        reason=result.reason,
        started=result.started,
        ended=result.ended,
        value=result.value,
        exit_code=result.exit_code,
        phase=result.stage.phase,
        machine=result.stage.machine,
    )


def _stamp() -> object:
    """Changes with the files that say what is offered."""
    return tuple(entry.stamp for entry in places.look(places.daemon_places(*FILES)))
