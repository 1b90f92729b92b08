"""Commands: checked, written down, sent, cancelled, and followed to their end."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from encamp.bus.bus import Bus
from encamp.bus.messages import CommandNews, Written, encode
from encamp.core.picture import HostState, joined
from encamp.manager.sending import Sender
from encamp.manager.store.store import Store
from encamp.manager.traffic import Pace
from encamp.manager.under_way import Moved, UnderWay
from encamp.model.arguments import check_arguments, from_texts
from encamp.model.command import (
    COMMAND_TRANSITIONS,
    LONGEST,
    OVER,
    CommandDefinition,
    CommandRecord,
    CommandState,
)
from encamp.model.errors import Code, EncampError
from encamp.model.property import Value
from encamp.model.site import EVERYBODY

log = logging.getLogger(__name__)

GRACE = 60.0
"""Seconds after its time limit in which the end of a command may still be told."""
SWEEP = 5.0
"""Seconds between two looks for commands that nobody will ever tell about."""


class Dispatcher:
    def __init__(
        self,
        hosts: Mapping[str, HostState],
        store: Store,
        bus: Bus,
        pace: Pace,
        moved: Moved,
        phased: Moved | None = None,
        stands_still: Callable[[], bool] = lambda: False,
    ) -> None:
        """`stands_still`: is nothing to be begun now?"""
        self._hosts = hosts
        self._store = store
        self._bus = bus
        self.commands = UnderWay(store, moved, phased)
        self._sender = Sender(hosts, bus, pace, self.commands, self._written, stands_still)
        self._moved = moved

    # ── issuing ──────────────────────────────────────────────────────────────────────────────────

    async def issue(
        self,
        hosts: Sequence[str],
        name: str,
        arguments: Mapping[str, Value],
        issuer: str,
        *,
        timeout: float | None = None,
        texts: bool = False,
        ids: Sequence[str] = (),
    ) -> list[CommandRecord]:
        """Write down a command for each host and send it. All of them, or none if one is wrong.
        `ids`: what they are to be known by, if that was decided before."""
        now = time.time()
        known_by = ids or [uuid.uuid4().hex for _ in hosts]
        records = [
            self._record(known, host, name, arguments, issuer, timeout, texts, now)
            for known, host in zip(known_by, hosts, strict=True)
        ]
        return await self.issue_prepared(records)

    def prepared(
        self, command_id: str, host: str, name: str, arguments: Mapping[str, Value], issuer: str
    ) -> CommandRecord:
        """What could be issued, checked; it may take as long as it likes."""
        now = time.time()
        return self._record(command_id, host, name, arguments, issuer, LONGEST, False, now)

    async def issue_prepared(self, records: list[CommandRecord]) -> list[CommandRecord]:
        """Can be asked again, if it is not known whether the store has written them."""
        await self._store.add_commands(records)
        for record in records:
            self._take_on(record)
            self._moved(record)
            self._sender.send(record.host, [record])
        return records

    def _record(
        self,
        command_id: str,
        host: str,
        name: str,
        arguments: Mapping[str, Value],
        issuer: str,
        timeout: float | None,
        texts: bool,
        now: float,
    ) -> CommandRecord:
        definition = self.definition(host, name)
        if texts:
            arguments = from_texts(definition, {key: str(arguments[key]) for key in arguments})
        checked = check_arguments(definition, arguments)
        limit = definition.timeout if timeout is None else timeout
        if not 0 < limit <= LONGEST:
            raise EncampError(
                Code.USAGE,
                f"A time limit of {limit} seconds makes no sense.",
                f"Give at most {LONGEST / 86400:.0f} days.",
            )
        return CommandRecord(
            id=command_id,
            host=host,
            name=name,
            arguments=checked,
            issuer=issuer,
            issued=now,
            changed=now,
            timeout=limit,
            reason="its agent has not taken it yet",
        )

    def _written(self) -> Written:
        return Written(rank=self._store.tenure.rank, number=self._store.written)

    def try_again(self) -> None:
        """What waited to be sent may be sent now."""
        self._sender.try_again()

    def has_host(self, name: str) -> bool:
        return name in self._hosts

    def definition(self, host: str, name: str) -> CommandDefinition:
        """What a host offers under this name; it must be there to be told."""
        state = self._hosts.get(host)
        if state is None:
            raise EncampError(
                Code.USAGE, f"There is no host '{host}'.", "'encamp hosts' lists them."
            )
        if not joined(state.record):
            raise EncampError(
                Code.UNREACHABLE,
                f"Host {host} is {state.record.presence.value}: {state.record.reason}.",
                "Commands can be issued to it when it is back.",
                transient=True,
            )
        for definition in state.record.commands:
            if definition.name == name:
                return definition
        import difflib

        offered = [definition.name for definition in state.record.commands]
        near = difflib.get_close_matches(name, offered, n=1)
        raise EncampError(
            Code.USAGE,
            f"Host {host} offers no command '{name}'.",
            f"Did you mean '{near[0]}'?"
            if near
            else f"'encamp command offered {host}' lists them.",
        )

    async def cancel(self, record: CommandRecord) -> CommandRecord:
        """Stop a command. One that was never sent is over at once. If its agent may have it, or may
        get it yet, that agent is told to stop it, however long that takes."""
        record = self.commands.records.get(record.id, record)
        if record.state in OVER:
            return record
        if self._is_gone(record.host):
            await self.stop(record)
            return self.commands.records.get(record.id, record)
        # Before anything is waited for: from now on it is not sent.
        self.commands.to_stop.add(record.id)
        try:
            if record.state is CommandState.WAITING:
                if record.id in self.commands.records and record.id not in self.commands.tried:
                    reason = "cancelled before it was sent"
                    return await self.commands.move(record, CommandState.CANCELLED, reason)
                record = await self.commands.move(
                    record, record.state, "its agent is told to stop it"
                )
            if record.state is CommandState.WAITING:
                self._sender.send(record.host, [record])
                self._sender.try_again()
            elif record.state not in OVER:
                await self._sender.ask_to_stop(record)
        except BaseException:
            # Whoever wanted it is told that it will not be.
            self.commands.to_stop.discard(record.id)
            raise
        return self.commands.records.get(record.id, record)

    async def stop(self, record: CommandRecord) -> None:
        """Like `cancel`, but for good: its agent is told as soon as it is there, whatever is
        restarted until then."""
        record = self.commands.records.get(record.id, record)
        if record.state in OVER:
            return
        self.commands.to_stop.add(record.id)
        known = record.id in self.commands.records
        if record.state is CommandState.WAITING and known and record.id not in self.commands.tried:
            reason = "cancelled before it was sent"
            await self.commands.move(record, CommandState.CANCELLED, reason)
            return
        record = await self.commands.move(record, record.state, "its agent is told to stop it")
        if record.state not in OVER:
            self._sender.send(record.host, [record])
            self._sender.try_again()

    # ── what is known at first ───────────────────────────────────────────────────────────────────

    async def resume(self) -> list[CommandRecord]:
        """Go on with what a former manager left under way."""
        left = await self._store.under_way()
        for record in left:
            self._take_on(record)
            if record.state is CommandState.WAITING:
                self.commands.tried.add(record.id)  # Who knows how far it got.
            if record.to_stop or record.state is CommandState.WAITING:
                self._sender.send(record.host, [record])
        return left

    def _take_on(self, record: CommandRecord) -> None:
        self.commands.records[record.id] = record
        if record.to_stop:
            self.commands.to_stop.add(record.id)

    async def host_joined(self, host: str, under_way: Sequence[str]) -> bool:
        """An agent has introduced itself, with the commands it has. True: it should do so again,
        since it did not speak of one that it may have been given just then."""
        spoken_of = set(under_way)
        ask_again = False
        again = []
        for record in [r for r in self.commands.records.values() if r.host == host]:
            if record.id in spoken_of:
                self.commands.missing.discard(record.id)
                if record.id in self.commands.to_stop:
                    again.append(record)
                elif record.state is CommandState.WAITING:
                    await self.commands.move(record, CommandState.RUNNING, "its agent has it")
            elif record.state is CommandState.WAITING:
                again.append(record)
            elif record.state is CommandState.RUNNING:
                if record.id in self.commands.missing:
                    # Told to stop it, its agent tells how it ended. It may have told so before, and
                    # the store was put back from a backup since.
                    self.commands.asked.add(record.id)
                    self.commands.to_stop.add(record.id)
                    again.append(record)
                else:
                    self.commands.missing.add(record.id)
                    ask_again = True
        self._sender.try_again()
        self._sender.send(host, again)
        return ask_again

    async def host_forgotten(self, host: str) -> None:
        """It is no longer part of the site: nobody will tell how its commands ended."""
        reason = "its host is no longer part of the site"
        for record in [r for r in self.commands.records.values() if r.host == host]:
            await self.commands.move(record, CommandState.LOST, reason, phase="")

    async def sweep(self) -> None:
        """Until cancelled: give up commands whose end nobody will tell any more, and tell all hosts
        how far the store has come: any of them may be asked to witness it."""
        told = self._store.written
        while True:
            await asyncio.sleep(SWEEP)
            if self._store.written != told:
                told = self._store.written
                await self._bus.multicast(EVERYBODY, encode(self._written()))
            now = time.time()
            for record in list(self.commands.records.values()):
                try:
                    await self._give_up(record, now)
                except EncampError as error:
                    log.warning("%s", error)

    def _is_gone(self, host: str) -> bool:
        state = self._hosts.get(host)
        return state is None or not joined(state.record)

    async def _give_up(self, record: CommandRecord, now: float) -> None:
        if not self._is_gone(record.host) or now < record.issued + record.timeout:
            return
        if record.state is CommandState.WAITING:
            await self._sender.expire(record)
        elif now > record.issued + record.timeout + GRACE:
            reason = "its host is gone, and nobody knows how it ended"
            await self.commands.move(record, CommandState.LOST, reason, phase="")

    # ── news ─────────────────────────────────────────────────────────────────────────────────────

    async def take_news(self, host: str, news: CommandNews) -> int | None:
        """Write down how a command gets on; how much of its output there is. None: it is not known
        here, and whoever told is not to tell it again."""
        record = self.commands.records.get(news.id) or await self.commands.find(news.id)
        if record is None or record.host != host:
            return None
        cancelled = news.state is CommandState.CANCELLED and not news.started
        if cancelled and record.id in self.commands.asked:
            # "Before it came", as far as its agent knows: but it had it.
            reason = "its agent knows nothing of it any more"
            await self.commands.move(record, CommandState.LOST, reason, phase="")
            return None
        if not COMMAND_TRANSITIONS[record.state] and news.offset + len(news.piece) > record.output:
            return None  # It has ended for good, and so has its output.
        had = 0
        if news.piece or news.offset:
            try:
                had = await self._store.add_output(news.id, news.offset, news.piece)
            except EncampError as error:
                if error.code is not Code.WRONG_STATE:
                    raise
                # There is a gap: it has to be told from where we are.
                return (await self._store.command(news.id)).output
        else:
            had = (
                record.output
                if record.state in OVER
                else (await self._store.command(news.id)).output
            )
        if news.state is record.state and news.phase:
            self.commands.get_on(news.id, news.phase, news.machine)
        # What it waited for is over; that it is to stop is still so.
        told_anew = news.state is record.state and record.reason and not record.to_stop
        changed = told_anew and news.reason != record.reason and record.state not in OVER
        if news.state is not record.state or news.value is not None or changed:
            await self.commands.move(
                record,
                news.state,
                news.reason,
                started=news.started,
                ended=news.ended,
                value=news.value,
                exit_code=news.exit_code,
                phase=news.phase if news.state in OVER else news.phase or record.phase,
                machine=news.machine or record.machine,
            )
        self.commands.tell(news.id)
        return had

    async def close(self) -> None:
        await self._sender.close()
