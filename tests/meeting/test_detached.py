"""What a detached job prints and leaves is there for whoever comes for it, whenever that is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from encamp.agent.commands.directory import CommandDirectory, Request, Result
from encamp.door.frames import Failure
from encamp.meeting import kept as kept_module
from encamp.meeting.frames import STDOUT, Failed, Role, files_out
from encamp.meeting.host import Conversation
from encamp.meeting.kept import FETCHED, Kept, kept
from encamp.model.command import CommandState
from encamp.model.errors import Code, EncampError
from tests.meeting.meeting import OUTCOME, Files, Host, Streams, client, host, until


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Host]:
    async with host(tmp_path) as made:
        yield made


def over(here: Host, id: str) -> None:
    """The process that carried it out has written the result, and is gone."""
    directory = here.records.directory(id)
    (directory.path / "meet").unlink()
    assert directory.begin(1.0)
    directory.end(Result(state=CommandState.DONE))
    assert here.records.settle(directory)


async def test_output_is_read_while_it_comes_and_after_the_end(here: Host) -> None:
    following = Streams()
    async with here.job("j.0.1", detached=True) as conversation:
        conversation.began()
        await conversation.write(b"one ")
        ticket = here.ticket("j.0.1")
        early = Streams()
        assert await client(ticket, early, Role.WATCH).run() is None
        assert early.out == b"one "
        follower = asyncio.create_task(client(ticket, following, Role.FOLLOW).run())
        await until(lambda: following.out == b"one ")
        await conversation.write(b"two")
        await conversation.write_error(b"oh")
        await conversation.ended(OUTCOME)
        assert await follower == OUTCOME
        assert await conversation.read() == b""
    over(here, "j.0.1")
    late = Streams()
    assert await client(here.ticket("j.0.1"), late, Role.FOLLOW).run() == OUTCOME
    assert bytes(late.out) == bytes(following.out) == b"one two"
    assert bytes(late.error) == bytes(following.error) == b"oh"


async def test_follower_goes_on_in_the_files_when_the_process_has_ended(here: Host) -> None:
    data = os.urandom(4_000_000)
    streams = Streams()
    async with here.job("j.0.1", detached=True) as conversation:
        streams.may_take.clear()
        following = asyncio.create_task(
            client(here.ticket("j.0.1", network=True), streams, Role.FOLLOW).run()
        )
        await conversation.write(data)
        await until(lambda: conversation.visitors)
        final = asyncio.create_task(conversation.ended(OUTCOME))
        await asyncio.sleep(0.05)
        final.cancel()
    over(here, "j.0.1")
    streams.may_take.set()
    assert await following == OUTCOME
    assert streams.out == data


async def test_files_are_brought_first_and_fetched_at_last(here: Host) -> None:
    bringing = Files([b"input " * 100_000])
    async with here.job("j.0.1", detached=True) as conversation:
        ticket = here.ticket("j.0.1")
        bringer = asyncio.create_task(client(ticket, role=Role.BRING, files=bringing).run())
        brought = b"".join([piece async for piece in conversation.bring(0, "a")])
        conversation.began()
        assert await bringer is None
        fetching = Files()
        fetcher = asyncio.create_task(client(ticket, role=Role.FETCH, files=fetching).run())
        out = conversation.send(1)
        await out.write(brought)
        out.finish()
        await conversation.ended(OUTCOME)
        assert await fetcher == OUTCOME
    over(here, "j.0.1")
    again = Files()
    assert await client(here.ticket("j.0.1"), role=Role.FETCH, files=again).run() == OUTCOME
    assert again.came == fetching.came == {1: brought}


@pytest.mark.parametrize("late", [False, True])
async def test_host_knows_when_all_files_were_fetched(here: Host, late: bool) -> None:
    """From the process that still stands, or from what it left."""

    def noted() -> bool:
        found = here.records.find("j.0.1")
        assert found is not None
        return (found.kept / FETCHED).exists()

    async def come(role: Role, is_fetched: bool, files: Files | None = None) -> None:
        coming = client(here.ticket("j.0.1"), role=role, files=files or Files())
        coming.is_fetched = lambda: is_fetched
        await coming.run()

    class Full(Files):
        async def unpack(self, number: int, pieces: AsyncIterable[bytes]) -> None:
            async for _ in pieces:
                raise EncampError(Code.DISK_FULL, "There is no room for it.")

    async with AsyncExitStack() as held:
        conversation = await held.enter_async_context(here.job("j.0.1", detached=True))
        conversation.began()
        await conversation.write(b"printed")
        for number in (0, 1):
            out = conversation.send(number)
            await out.write(b"left " * 100_000)
            out.finish()
        ending = asyncio.create_task(conversation.ended(OUTCOME))
        if late:
            await ending
            await held.aclose()
            over(here, "j.0.1")
        await come(Role.FOLLOW, True)
        await come(Role.FETCH, False)
        with pytest.raises(EncampError, match="no room"):
            await come(Role.FETCH, True, Full())
        assert not noted()
        await come(Role.FETCH, True)
        await until(noted)
        await come(Role.FETCH, True)
        await ending


async def test_job_whose_files_do_not_come_fails(here: Host) -> None:
    class Slow(Files):
        async def pack(self, number: int, name: str) -> AsyncIterator[bytes]:
            bringer.cancel()
            while True:
                yield bytes(100_000)

    async with here.job("j.0.1", detached=True) as conversation:
        bringer = asyncio.create_task(
            client(here.ticket("j.0.1"), role=Role.BRING, files=Slow()).run()
        )
        with pytest.raises(EncampError, match="did not come"):
            async for _ in conversation.bring(0, "a"):
                pass


async def test_detached_job_does_not_depend_on_those_who_watch(here: Host) -> None:
    async with here.job("j.0.1", detached=True) as conversation:
        watcher = asyncio.create_task(client(here.ticket("j.0.1"), role=Role.FOLLOW).run())
        await until(lambda: conversation.visitors)
        watcher.cancel()
        await until(lambda: not conversation.visitors)

        async def work() -> int:
            await asyncio.sleep(0.01)
            return 7

        assert await conversation.attend(work()) == 7


async def test_what_an_attached_job_prints_is_not_for_others(here: Host) -> None:
    async with here.job("j.0.1"):
        with pytest.raises(EncampError, match="goes to whoever runs it"):
            await client(here.ticket("j.0.1"), role=Role.FOLLOW).run()


async def test_of_an_attached_job_that_is_over_nothing_is_left(here: Host) -> None:
    async with here.job("j.0.1"):
        pass
    directory = here.records.directory("j.0.1")
    assert directory.begin(1.0)
    directory.end(Result(state=CommandState.DONE))
    with pytest.raises(EncampError, match="nothing of it is kept"):
        await client(here.ticket("j.0.1"), role=Role.WATCH).run()


async def test_process_that_was_killed_leaves_what_it_had_printed(here: Host) -> None:
    async with here.job("j.0.1", detached=True) as conversation:
        await conversation.write(b"so far")
    over(here, "j.0.1")
    streams = Streams()
    with pytest.raises(EncampError, match="before it could say how"):
        await client(here.ticket("j.0.1"), streams, Role.FOLLOW).run()
    assert streams.out == b"so far"


async def test_ticket_is_good_for_what_is_put_away_while_it_is_looked_at(
    here: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with here.job("j.0.1", detached=True) as conversation:
        conversation.began()
        await conversation.write(b"all of it")
    read, looked_at = CommandDirectory.read_request, []

    def read_request(directory: CommandDirectory) -> Request | None:
        looked_at.append(directory.path.parent.name)
        if len(looked_at) == 1:
            over(here, "j.0.1")
        return read(directory)

    monkeypatch.setattr(CommandDirectory, "read_request", read_request)
    streams = Streams()
    await client(here.ticket("j.0.1"), streams, Role.WATCH).run()
    assert looked_at == ["under-way", "kept"]
    assert streams.out == b"all of it"


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────


async def test_only_the_owners_own_files_are_shown(tmp_path: Path) -> None:
    """The owner's processes can put anything there, and the agent may be root."""
    secret = tmp_path / "secret"
    secret.write_text("of somebody else")
    place = tmp_path / "kept"
    place.mkdir()
    (place / "stdout").symlink_to(secret)
    os.link(secret, place / "stderr")
    os.mkfifo(place / "files-0")
    (place / "files-1").mkdir()
    (place / "files-x").touch()
    with kept(place) as found:
        assert found.find(STDOUT) is None
        assert found.find(2) is None
        assert [found.find(number) for number in found.files()] == [None, None]
        assert found.outcome() is None


async def test_endless_output_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_module, "LARGEST_KEPT", 1000)
    with kept(tmp_path) as place:
        conversation = Conversation("", place)
        for _ in range(50):
            await conversation.write(bytes(99))
    text = (tmp_path / "stdout").read_bytes()
    assert text.startswith(bytes(1000) + b"\n[encamp: cut after 1000 B]")
    assert len(text) < 1100


async def test_outcome_is_kept_whole(tmp_path: Path) -> None:
    with kept(tmp_path) as place:
        final = Failed(Failure.of(EncampError(Code.NO_ROOM, "Full.")))
        place.settle(final)
        assert place.outcome() == final
        (tmp_path / "outcome").write_bytes(b"\x93nonsense")
        assert place.outcome() is None


async def test_what_became_shorter_is_noticed(tmp_path: Path) -> None:
    with kept(tmp_path) as place:
        stream = place.create(files_out(0))
        await stream.write(b"12345")
        os.truncate(tmp_path / "files-0", 2)
        with pytest.raises(EncampError, match="shorter"):
            stream.read(3, 10)


def test_open_directory_is_enough(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    place = Kept(fd)
    os.close(fd)
    place.create(STDOUT)
    place.close()
    assert (tmp_path / "stdout").exists()
