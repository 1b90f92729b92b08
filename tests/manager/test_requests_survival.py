"""A manager that is struck dead between any two steps: no request is lost, none is run twice."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from encamp.bus.messages import CommandNews
from encamp.door.questions import EndRequest
from encamp.manager.dispatching import Dispatcher
from encamp.manager.placing import Placing
from encamp.manager.sending import Sender
from encamp.manager.store.store import Store
from encamp.manager.under_way import UnderWay
from encamp.manager.writing import Writing
from encamp.model.command import CommandState
from encamp.model.errors import Code, EncampError
from encamp.model.host import Presence
from encamp.model.policy import Policy
from encamp.model.request import PartResult, RequestRecord, RequestState
from encamp.model.site import Site
from tests.manager.playing import Bench, HonestAgent, machine, managed, until

SITE = Site(placement=Policy(pause=0.05, longest_pause=0.1, patience=1.0))


class Strike:
    """From one call of a function on, nothing happens any more in the manager that made it."""

    def __init__(
        self, patch: pytest.MonkeyPatch, where: type, name: str, count: int, *, before: bool
    ) -> None:
        """Before it, or after it, when it is called for the so-manieth time."""
        self.struck = asyncio.Event()
        self._left = count
        original = getattr(where, name)

        async def deadly(owner: Any, *arguments: Any, **options: Any) -> Any:
            self._left -= 1
            due = self._left == 0
            if due and before:
                await self._strike()
            result = await original(owner, *arguments, **options)
            if due:
                await self._strike()
            return result

        patch.setattr(where, name, deadly)

    async def _strike(self) -> None:
        self.struck.set()
        await asyncio.get_running_loop().create_future()


POINTS: list[tuple[type, str, int]] = [
    (Store, "add_request", 1),
    (Placing, "_claim", 1),
    (Writing, "_write", 1),
    (Writing, "_write", 2),
    (Store, "write_requests", 1),
    (Store, "write_requests", 2),
    (Placing, "_begin", 1),
    (Dispatcher, "issue_prepared", 1),
    (Store, "add_commands", 1),
    (Sender, "_send", 1),
    (Store, "move_command", 1),
    (Store, "move_command", 2),
    (UnderWay, "move", 1),
    (UnderWay, "move", 2),
]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    ("where", "name", "count"), POINTS, ids=[f"{p[0].__name__}.{p[1]}-{p[2]}" for p in POINTS]
)
async def test_a_job_is_run_once_wherever_the_manager_dies(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: type,
    name: str,
    count: int,
    before: bool,
) -> None:
    async with managed(tmp_path, SITE) as bench:
        agent = HonestAgent("node1", bench.hub)
        async with agent.working():
            await bench.settle()
            with monkeypatch.context() as patch:
                strike = Strike(patch, where, name, count, before=before)
                asking = asyncio.create_task(bench.submit())
                async with asyncio.timeout(20):
                    await strike.struck.wait()
                await bench.stop()
                with suppress(asyncio.CancelledError):
                    asking.cancel()
                    await asking
            await bench.start()
            await until(lambda: "node1" in bench.manager.core.picture.hosts)
            await bench.settle()
            records = await bench.manager.store.requests()
            if not records:
                assert (where, name, before) == (Store, "add_request", True)
                return
            [record] = records
            done = await bench.until(record, RequestState.DONE)
            assert done.exit_code == 0
            assert len(agent.ran) == 1
            assert agent.ran == [f"{record.request.id}.0.{done.attempt}"]


async def test_what_was_told_of_a_part_while_nobody_listened_is_known_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a command is on the disk, that of its request is not."""
    async with managed(tmp_path, SITE) as bench:
        async with bench.agent().joined() as agent:
            await bench.settle()
            record = await bench.submit()
            command = await agent.command()
            await agent.phase(command, "running", "m1")
            await bench.until(record, RequestState.RUNNING)
            await bench.manager.desk.writing.written(record.request.id)
            with monkeypatch.context() as patch:
                patch.setattr(Writing, "_write", lambda *_: asyncio.sleep(3600))
                await agent.done(command, PartResult(machine="m1", exit_code=4, began=True))
                await bench.stop()
        await bench.start()
        async with bench.agent().joined():
            await bench.settle()
            done = await bench.until(record, RequestState.DONE)
            assert done.exit_code == 4


async def test_a_request_that_is_to_end_ends_after_a_restart(tmp_path: Path) -> None:
    async with managed(tmp_path, SITE) as bench:
        async with bench.agent().joined() as agent:
            await bench.settle()
            record = await bench.submit()
            command = await agent.command()
            await agent.phase(command, "running", "m1")
            await bench.until(record, RequestState.RUNNING)
        await until(lambda: _gone(bench))
        [wanted] = await bench.answers(EndRequest(id=record.request.id))
        assert wanted.to_stop
        await bench.stop()
        await bench.start()
        async with bench.agent().joined(command) as agent:
            await bench.settle()
            await until(lambda: command in agent.cancelled)
            await agent.say(CommandNews(id=command, state=CommandState.CANCELLED, started=1.0))
            await bench.until(record, RequestState.CANCELLED)


def _gone(bench: Bench) -> bool:
    return bench.manager.core.picture.hosts["node1"].record.presence is not Presence.JOINED


async def test_what_its_host_has_not_heard_of_does_not_begin_after_it_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with managed(tmp_path, SITE) as bench:
        with monkeypatch.context() as patch:

            async def not_yet(*arguments: Any) -> bool:
                return False

            patch.setattr(Sender, "_send", not_yet)
            async with bench.agent("node1").joined():
                await bench.settle()
                record = await bench.submit(retries=1)
                await until(lambda: bench.manager.dispatcher.commands.records)
            first = f"{record.request.id}.0.1"
            async with bench.agent("node2").joined():
                # Its host is waited for, in vain.
                await until(lambda: _attempt(bench, record) == 2)
                await until(lambda: first not in bench.manager.dispatcher.commands.records)
        async with bench.agent("node1").joined() as agent:
            # What it is told comes in order.
            [issued] = await bench.manager.dispatcher.issue(["node1"], "test.do", {}, "root")
            await until(lambda: issued.id in agent.told)
            assert first not in agent.told


async def test_what_is_being_issued_when_it_is_given_up_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, reached = asyncio.Event(), asyncio.Event()
    async with managed(tmp_path, SITE) as bench:
        add = bench.manager.store.add_commands

        async def slowly(records: Any) -> None:
            if records[0].id.count(".") == 2:
                reached.set()
                await go.wait()
            await add(records)

        monkeypatch.setattr(bench.manager.store, "add_commands", slowly)
        async with bench.agent().joined():
            await bench.settle()
            record = await bench.submit()
            await reached.wait()
        await bench.until(record, RequestState.LOST)
        go.set()
        async with bench.agent().joined() as agent:
            [issued] = await bench.manager.dispatcher.issue(["node1"], "test.do", {}, "root")
            await until(lambda: issued.id in agent.told)
            assert list(agent.told) == [issued.id]


def _attempt(bench: Bench, record: RequestRecord) -> int:
    found = bench.manager.core.placement.records.get(record.request.id)
    return found.attempt if found is not None else 0


async def test_a_machine_that_stands_is_known_after_a_restart(tmp_path: Path) -> None:
    async with managed(tmp_path, SITE) as bench:
        async with bench.agent().joined() as agent:
            await bench.settle()
            record = await bench.stand(agent)
            await bench.manager.desk.writing.written(record.request.id)
            await bench.stop()
        await bench.start()
        other = bench.agent()
        other.hello = {"machines": (machine("m1"),)}
        async with other.joined():
            await bench.settle()
            assert (await bench.record(record)).state is RequestState.RUNNING
            assert other.told == {}
            await other.report()
            await bench.until(record, RequestState.DONE)


@pytest.mark.parametrize("restart", [True, False])
async def test_a_machine_of_a_request_that_was_lost_is_removed_when_its_host_brings_it_back(
    tmp_path: Path, restart: bool
) -> None:
    async with managed(tmp_path, SITE) as bench:
        async with bench.agent().joined() as agent:
            await bench.settle()
            record = await bench.stand(agent)
        await bench.until(record, RequestState.LOST)
        await bench.manager.desk.writing.written(record.request.id)
        if restart:
            await bench.stop()
            await bench.start()
        other = bench.agent()
        other.hello = {"machines": (machine("m1"),)}
        async with other.joined():
            removal = other.told[await other.command()]
            assert (removal.name, removal.arguments["machine"]) == ("machine.remove", "m1")


@pytest.mark.parametrize("restart", [True, False])
async def test_a_machine_of_an_attempt_that_was_lost_is_removed_when_its_host_brings_it_back(
    tmp_path: Path, restart: bool
) -> None:
    async with managed(tmp_path, SITE) as bench:
        async with bench.agent().joined() as agent:
            await bench.settle()
            record = await bench.stand(agent, retries=1)
        waiting = await bench.until(record, RequestState.WAITING)
        assert (waiting.lost, waiting.forsaken[0].machine) == (1, "m1")
        await bench.manager.desk.writing.written(record.request.id)
        async with bench.agent("node2").joined() as second:
            again = await second.command()
            await second.done(again, PartResult(machine="m2", standing=True), "start")
            await second.report(machine("m2"))
            await bench.until(record, RequestState.RUNNING)
            await bench.manager.desk.writing.written(record.request.id)
            if restart:
                await bench.stop()
                await bench.start()
            first = bench.agent()
            first.hello = {"machines": (machine("m1"),)}
            async with first.joined():
                removal = first.told[await first.command()]
                assert (removal.name, removal.arguments["machine"]) == ("machine.remove", "m1")
                assert len(second.told) == 1


async def test_the_end_of_a_lost_job_that_was_told_and_not_written_is_known_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with managed(tmp_path, SITE) as bench:
        async with bench.agent().joined() as agent:
            await bench.settle()
            record = await bench.submit()
            command = await agent.command()
            await agent.phase(command, "running")
            await bench.until(record, RequestState.RUNNING)
        await bench.until(record, RequestState.LOST)
        await bench.manager.desk.writing.written(record.request.id)
        reached = asyncio.Event()

        async def never(records: Any) -> None:
            reached.set()
            await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(bench.manager.store, "write_requests", never)
        async with bench.agent().joined(command) as other:
            await other.done(command, PartResult(exit_code=3, began=True))
            await reached.wait()
        await bench.stop()
        await bench.start()
        async with bench.agent().joined():
            found = await bench.until(record, RequestState.DONE)
        assert found.exit_code == 3


async def test_a_store_that_fails_for_a_while_holds_requests_up_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("encamp.manager.writing.FIRST_PAUSE", 0.01)
    failing = True

    async with managed(tmp_path, SITE) as bench:
        agent = HonestAgent("node1", bench.hub)
        async with agent.working():
            await bench.settle()
            store = bench.manager.store
            write, tried = store.write_requests, asyncio.Event()

            async def refuse(records: Any) -> None:
                tried.set()
                if failing:
                    raise EncampError(Code.UNREACHABLE, "It does not answer.", transient=True)
                await write(records)

            monkeypatch.setattr(store, "write_requests", refuse)
            record = await bench.submit()
            await tried.wait()
            assert agent.ran == []
            # Others are taken in meanwhile.
            other = await bench.submit()
            failing = False
            for one in (record, other):
                await bench.until(one, RequestState.DONE)
            assert len(agent.ran) == 2


async def test_thousands_that_wait_are_there_again_after_a_restart(tmp_path: Path) -> None:
    async with managed(tmp_path, SITE) as bench:
        first = await bench.submit()
        copies = (msgspec.structs.replace(first.request, id=f"{n:032}") for n in range(2500))
        add = bench.manager.store.add_request
        await asyncio.gather(*(add(RequestRecord(request=copy)) for copy in copies))
        await bench.stop()
        await bench.start()
        assert len(bench.manager.core.placement.records) == 2501
        assert bench.manager.desk.requests.standing.counts() == {"waiting": 2501}
