"""A manager of the sample site, as far as asking goes, at a real door."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from encamp.door import questions
from encamp.door.peer import Peer
from encamp.door.server import Door
from encamp.model.command import OVER, CommandRecord, CommandState
from encamp.model.errors import Code, EncampError
from encamp.model.host import Presence
from encamp.model.size import Size
from tests.cli.sample_site import Site, command_record


class Answering:
    """Commands that are sent end as their names say."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.asked: list[questions.Question] = []
        self.issued: dict[str, CommandRecord] = {}
        self.cancelled = threading.Event()
        self.refusal: EncampError | None = None
        """What every question is answered with, for as long as it is set."""
        self.wrong: EncampError | None = None
        """What is wrong with the files that describe environments."""

    async def __call__(
        self, peer: Peer, question: questions.Question
    ) -> AsyncIterator[msgspec.Struct]:
        self.asked.append(question)
        if self.refusal is not None:
            raise self.refusal
        for item in await self._items(peer, question):
            yield item
        if self.wrong is not None and isinstance(question, questions.AskEnvironments):
            raise self.wrong

    async def _items(self, peer: Peer, question: questions.Question) -> list[msgspec.Struct]:
        site = self.site
        match question:
            case questions.AskStatus():
                return [site.status]
            case questions.AskHosts() | questions.AskProperties():
                return [host for host in site.hosts if _fits(host.name, question.hosts)]
            case questions.AskMachines():
                return [entry for entry in site.machines if _fits(entry.host, question.hosts)]
            case questions.AskEvents():
                past = [event for event in site.events if event.number > question.since]
                return [*past[len(past) - (question.last or len(past)) :]]
            case questions.AskCommands():
                found = [record for record in site.commands if record.id.startswith(question.id)]
                return [one for one in found if not (question.under_way and one.state in OVER)]
            case questions.AskRequests():
                return list(site.requests)
            case questions.AskTriggers():
                return [view for view in site.triggers if question.name in ("", view.name)]
            case questions.AskTriggerLog():
                return [*site.log[-question.last :]]
            case questions.ReloadTriggers():
                raise EncampError(
                    Code.CONFIGURATION,
                    "triggers.yaml:3: There is no 'lod1'.",
                    "Did you mean load1?",
                )
            case questions.AskEnvironments():
                return [questions.SiteEnvironment(name="tools", size=Size(1, 128 << 20))]
            case questions.AskRecording():
                return [questions.Recording(at=site.now, hosts=tuple(site.hosts))]
            case questions.IssueCommand():
                return self._issue(peer, question)
            case questions.CancelCommand():
                self.cancelled.set()
                return [self.issued[question.id]]
            case questions.FollowCommands():
                return await self._follow(question)
            case _:
                raise AssertionError(question)

    def _issue(self, peer: Peer, asked: questions.IssueCommand) -> list[msgspec.Struct]:
        if "gone" in asked.hosts:
            raise EncampError(Code.UNREACHABLE, "Host gone is lost.", "It may come back.")
        records: list[msgspec.Struct] = []
        for host in self.site.hosts:
            if any(_fits(host.name, (pattern,)) for pattern in asked.hosts):
                if host.presence is not Presence.JOINED:
                    records.insert(0, questions.LeftOut(host.name, f"is lost: {host.reason}"))
                    continue
                record = msgspec.structs.replace(
                    command_record(
                        self.site.now, 9, host.name, asked.name, peer.user, CommandState.RUNNING
                    ),
                    id=f"{len(self.issued):032x}",
                    arguments=asked.arguments,
                )
                self.issued[record.id] = record
                records.append(record)
        return records

    async def _follow(self, asked: questions.FollowCommands) -> list[msgspec.Struct]:
        return [part for id in asked.offsets for part in await self._parts(id)]

    async def _parts(self, id: str) -> list[msgspec.Struct]:
        if id not in self.issued:
            return [questions.Output(id, 0, b"hello "), questions.Output(id, 6, b"there\n")]
        record = self.issued[id]
        state = CommandState.DONE
        if record.name == "test.endless":
            while not self.cancelled.is_set():
                await asyncio.sleep(0.01)
            state = CommandState.CANCELLED
        elif record.name == "test.fail" and record.host == "node02":
            state = CommandState.FAILED
        reason = "Its output was cut." if record.name == "test.cut" else ""
        ended = msgspec.structs.replace(
            record, state=state, value={"on": record.host}, reason=reason
        )
        return [questions.Output(id, 0, f"{record.host} works\nand is".encode()), ended]


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


@contextmanager
def answered(path: Path, answering: Answering) -> Iterator[Answering]:
    """The door stands open, in a thread, so that the test can ask at it."""
    loop = asyncio.new_event_loop()
    opened, over = threading.Event(), asyncio.Event()

    async def stand() -> None:
        async with Door(path, answering):
            opened.set()
            await over.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(stand(),))
    thread.start()
    try:
        assert opened.wait(60)
        yield answering
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
