"""A door: questions go in, answers come out, and the kernel says who asks."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from encamp.door import client
from encamp.door.client import ask, ask_async
from encamp.door.places import manager_door
from encamp.door.questions import AskCommands, AskEvents, AskHosts, AskStatus, Question, Status
from encamp.door.server import Door
from encamp.door.socket_file import listening
from encamp.home import Home
from encamp.model.errors import Code, EncampError
from encamp.model.event import Event
from encamp.model.host import Host
from encamp.model.site import Site
from tests.door.answering import Answering


@pytest.fixture
async def answering() -> Answering:
    return Answering()


@pytest.fixture
async def door(tmp_path: Path, answering: Answering) -> AsyncIterator[Path]:
    path = tmp_path / "manager.sock"
    async with Door(path, answering):
        yield path


async def hosts(path: Path, *names: str) -> list[str]:
    async with aclosing(ask_async(path, AskHosts(hosts=names), Host)) as answer:
        return [host.name async for host in answer]


async def refusal(path: Path, question: Question, told: list[str] | None = None) -> EncampError:
    """The error that ends the answer; the names of hosts that were told before it."""
    try:
        async with aclosing(ask_async(path, question, Host)) as answer:
            async for host in answer:
                if told is not None:
                    told.append(host.name)
    except EncampError as error:
        return error
    raise AssertionError(f"{question} was answered")


async def test_answer_comes_item_by_item_in_order(door: Path) -> None:
    names = [f"node{number}" for number in range(1000)]
    assert await hosts(door, *names) == names


async def test_one_who_has_no_event_loop_can_ask_too(door: Path) -> None:
    def asked() -> list[str]:
        return [host.name for host in ask(door, AskHosts(hosts=("a", "b")), Host)]

    assert await asyncio.to_thread(asked) == ["a", "b"]


async def test_error_arrives_whole_and_after_what_was_told_before_it(door: Path) -> None:
    told: list[str] = []
    error = await refusal(door, AskHosts(hosts=("a", "broken")), told)
    assert told == ["a", "broken"]
    assert (error.code, error.sentence, error.hint) == (Code.NO_ROOM, "Broken.", "Mend it.")
    assert (error.transient, error.detail) == (True, "cogs")


async def test_mistake_of_the_manager_is_told_and_logged(
    door: Path, caplog: pytest.LogCaptureFixture
) -> None:
    error = await refusal(door, AskHosts(hosts=("mistaken",)))
    assert error.code is Code.INTERNAL
    assert "ValueError: seven" in error.sentence
    assert "AskHosts" in caplog.text
    assert await hosts(door, "a") == ["a"]


async def test_answer_of_another_type_is_named(door: Path) -> None:
    error = await refusal(door, AskStatus())
    assert error.code is Code.PROTOCOL
    assert "Status" in error.sentence


async def test_kernel_says_who_asks(door: Path, answering: Answering) -> None:
    await hosts(door, "a")
    (peer,) = answering.peers
    assert (peer.uid, peer.gid, peer.pid) == (os.geteuid(), os.getegid(), os.getpid())
    assert peer.user == pwd.getpwuid(os.geteuid()).pw_name
    assert {grp.getgrgid(number).gr_name for number in os.getgroups()} <= set(peer.groups)


async def test_one_who_hangs_up_ends_the_answer(door: Path, answering: Answering) -> None:
    async with aclosing(ask_async(door, AskEvents(follow=True), Event)) as events:
        async for event in events:
            if event.number == 3:
                break
    await answering.ended.wait()


async def test_one_who_hangs_up_ends_an_answer_that_has_nothing_to_tell(
    door: Path, answering: Answering
) -> None:
    reading = asyncio.create_task(refusal(door, AskCommands()))
    while not answering.peers:
        await asyncio.sleep(0.001)
    reading.cancel()
    await asyncio.wait({reading})
    await answering.ended.wait()


async def test_door_that_closes_ends_all_answers(tmp_path: Path, answering: Answering) -> None:
    path = tmp_path / "manager.sock"
    async with Door(path, answering):
        reading = asyncio.create_task(refusal(path, AskCommands()))
        while not answering.peers:
            await asyncio.sleep(0.001)
    assert answering.ended.is_set()
    error = await reading
    assert (error.code, error.transient) == (Code.UNREACHABLE, True)
    assert "went away in the middle" in error.sentence
    assert list(tmp_path.iterdir()) == []


async def test_one_who_knocks_between_two_doors_is_heard_by_the_next(
    tmp_path: Path, answering: Answering
) -> None:
    path = tmp_path / "manager.sock"
    with listening(path) as listener:
        async with Door(path, answering, listener):
            assert await hosts(path, "a") == ["a"]
        knocking = asyncio.create_task(hosts(path, "b"))
        await asyncio.sleep(0.05)
        assert not knocking.done()
        async with Door(path, answering, listener):
            assert await knocking == ["b"]
    assert list(tmp_path.iterdir()) == []


async def test_nobody_there_is_said_with_place_and_remedy(tmp_path: Path) -> None:
    error = await refusal(tmp_path / "nothing.sock", AskHosts())
    assert (error.code, error.transient) == (Code.UNREACHABLE, True)
    assert str(tmp_path / "nothing.sock") in error.sentence
    assert "encamp serve" in error.hint


async def test_socket_of_a_dead_manager_is_named_so_and_replaced(
    tmp_path: Path, answering: Answering
) -> None:
    path = tmp_path / "manager.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert "has ended" in (await refusal(path, AskHosts())).sentence
    async with Door(path, answering):
        assert await hosts(path, "a") == ["a"]


async def test_live_manager_is_not_replaced(door: Path, answering: Answering) -> None:
    with pytest.raises(EncampError) as caught:
        async with Door(door, answering):
            pass
    assert caught.value.code is Code.WRONG_STATE
    assert str(os.getpid()) in caught.value.sentence
    assert await hosts(door, "a") == ["a"]


async def test_file_that_is_no_socket_is_left_alone(tmp_path: Path, answering: Answering) -> None:
    path = tmp_path / "manager.sock"
    path.write_text("precious")
    with pytest.raises(EncampError, match="not a socket"):
        async with Door(path, answering):
            pass
    assert [entry.name for entry in tmp_path.iterdir()] == ["manager.sock"]
    assert path.read_text() == "precious"


async def test_directory_that_others_can_write_to_is_refused(
    tmp_path: Path, answering: Answering
) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(EncampError) as caught:
        async with Door(open_to_all / "manager.sock", answering):
            pass
    assert caught.value.code is Code.NOT_PERMITTED
    assert list(open_to_all.iterdir()) == []


async def test_everybody_may_knock(door: Path) -> None:
    assert stat.S_IMODE(door.stat().st_mode) == 0o666


async def test_path_of_any_length_will_do(tmp_path: Path, answering: Answering) -> None:
    path = tmp_path / ("long" * 30) / ("longer" * 20) / "manager.sock"
    async with Door(path, answering):
        assert await hosts(path, "a") == ["a"]


def test_door_is_in_the_managers_home_unless_the_site_says_otherwise(tmp_path: Path) -> None:
    assert manager_door(Site(), Home(tmp_path)) == tmp_path / "manager.sock"
    assert manager_door(Site(door="/run/x.sock"), Home(tmp_path)) == Path("/run/x.sock")


async def test_status_is_decoded_as_it_was_sent(door: Path) -> None:
    async with aclosing(ask_async(door, AskStatus(), Status)) as answer:
        (found,) = [status async for status in answer]
    assert found.site == pwd.getpwuid(os.geteuid()).pw_name


async def test_manager_that_does_not_listen_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE", 1)
    path = tmp_path / "manager.sock"
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(path))
        deaf.listen(4)
        found = await asyncio.gather(
            refusal(path, AskHosts()),
            asyncio.to_thread(lambda: refused(path, AskHosts())),
        )
    for error in found:
        assert (error.code, error.transient) == (Code.UNREACHABLE, True)
        assert "takes no questions" in error.sentence


def refused(path: Path, question: Question) -> EncampError:
    with pytest.raises(EncampError) as caught:
        list(ask(path, question, Host))
    return caught.value


@pytest.mark.parametrize(
    "said", [b"\xff\xff\xff\xff", b"\0\0\0\1\xc1", b"\0\0\0\7\x91\xa5Nobod"], ids=range(3)
)
async def test_answer_that_makes_no_sense_is_said_to_be_so(tmp_path: Path, said: bytes) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await reader.read()
        writer.close()

    path = tmp_path / "manager.sock"
    async with await asyncio.start_unix_server(babble, path):
        error = await refusal(path, AskHosts())
    assert error.code is Code.PROTOCOL
    assert "same version" in error.hint
