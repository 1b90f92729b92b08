"""One session for several processes of the host, with the real guest program."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from encamp.guest import relay
from encamp.guest.channel import Channel, Exec, Exit, Hello, Kind
from encamp.guest.frames import CALL_BIT, HEADER, PAYLOAD_LIMIT, Frame, Type
from encamp.guest.relay import Relay
from encamp.machines import sockets
from encamp.model.errors import Code, EncampError
from tests.guest.support import Guest, read_all

MACHINE = bytes(16)


class Relayed:
    """A relay, and those who use it."""

    def __init__(self, channel: Channel, place: Path) -> None:
        self.channel = channel
        self.place = place
        self.relay = Relay(channel, sockets.listen(place, "door"), MACHINE, most=6)
        self._open: list[Channel] = []

    def connect(self) -> socket.socket:
        return sockets.connect(self.place, "door")

    async def client(self) -> Channel:
        hello = Hello(machine=MACHINE, hostname="relayed")
        channel = await Channel.open(self.connect(), hello, fresh=True)
        self._open.append(channel)
        async with asyncio.timeout(30):
            assert (await channel.welcome()).machine == MACHINE
        return channel

    async def close(self) -> None:
        for channel in self._open:
            await channel.close()
        self.relay.close()


@pytest.fixture
async def relayed(guest: Guest, tmp_path: Path) -> AsyncIterator[Relayed]:
    made = Relayed(await guest.open(), tmp_path)
    yield made
    await made.close()


def shell(script: str, **more: str) -> Exec:
    return Exec(
        args=["/bin/sh", "-c", script],
        env={"PATH": "/usr/bin:/bin", **more},
        cwd="/",
        uid=os.getuid(),
        gid=os.getgid(),
    )


async def run(channel: Channel, command: Exec, given: bytes = b"") -> tuple[bytes, Exit]:
    stream = channel.execute(command)

    async def feed() -> None:
        await stream.write(given)
        await stream.end()

    async with asyncio.timeout(60):
        out, _, _ = await asyncio.gather(read_all(stream.stdout), read_all(stream.stderr), feed())
        return out, await stream.wait()


async def test_clients_have_their_own_commands(relayed: Relayed) -> None:
    clients = [await relayed.client() for _ in range(3)]
    data = [os.urandom(700_000 + number) for number in range(3)]
    commands = [shell(f"cat; exit {number}") for number in range(3)]
    done = await asyncio.gather(
        *(run(*all) for all in zip(clients, commands, data, strict=True)),
        # And so has whoever has the session.
        run(relayed.channel, shell("cat"), b"own"),
    )
    assert [out for out, _ in done] == [*data, b"own"]
    assert [ended.code for _, ended in done] == [0, 1, 2, 0]


async def test_signals_reach_the_clients_own_command(relayed: Relayed) -> None:
    first, second = await relayed.client(), await relayed.client()
    one, other = (client.execute(shell("echo up; sleep 1000")) for client in (first, second))
    assert await one.stdout.read() == await other.stdout.read() == b"up\n"
    one.signal(signal.SIGTERM)
    assert await one.wait() == Exit(Kind.KILLED, signal.SIGTERM)
    other.signal(signal.SIGUSR1)
    assert await other.wait() == Exit(Kind.KILLED, signal.SIGUSR1)


async def test_held_commands_of_clients_begin_when_they_are_told_to(relayed: Relayed) -> None:
    client = await relayed.client()
    stream = client.execute(msgspec.structs.replace(shell("echo begun"), held=True))
    assert (await run(client, shell("sleep 0.2; echo other")))[0] == b"other\n"
    stream.go()
    assert await read_all(stream.stdout) == b"begun\n"
    assert (await stream.wait()).code == 0


async def test_commands_of_a_client_that_goes_end_and_no_others(relayed: Relayed) -> None:
    going, staying = await relayed.client(), await relayed.client()
    stubborn = going.execute(shell("trap '' HUP; echo $$; yes"))
    other = staying.execute(shell("echo up; read line; echo $line; exit 3"))
    pid = int((await stubborn.stdout.read()).split()[0])
    assert await other.stdout.read() == b"up\n"
    await going.close()
    async with asyncio.timeout(30):
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.05)
    await other.write(b"on\n")
    assert await other.stdout.read() == b"on\n"
    assert (await other.wait()).code == 3
    # Its place is free again.
    assert len(relayed.relay.clients) == 1


async def test_long_commands_do_not_get_mixed(relayed: Relayed) -> None:
    """Parts of one come while another is being said."""
    with relayed.connect() as slow:
        slow.setblocking(True)
        long = shell("exit 0", LONG="x" * (PAYLOAD_LIMIT + 1000)).encode(1)
        slow.sendall(long[: PAYLOAD_LIMIT + HEADER.size])
        client = await relayed.client()
        more = shell('echo "${#LONG}"', LONG="y" * (PAYLOAD_LIMIT + 2000))
        out, _ = await run(client, more)
        assert int(out) == PAYLOAD_LIMIT + 2000
        slow.sendall(long[PAYLOAD_LIMIT + HEADER.size :])
        slow.setblocking(False)
        async with asyncio.timeout(30):
            assert Type.EXIT in [kind async for kind in kinds(slow)]


async def kinds(connection: socket.socket) -> AsyncIterator[int]:
    """Of frames that come, to the last of a command."""
    loop, kind = asyncio.get_running_loop(), 0
    while kind != Type.EXIT:
        head = await loop.sock_recv(connection, HEADER.size)
        assert len(head) == HEADER.size
        _, kind, _, _, _, length = HEADER.unpack(head)
        if length:
            await loop.sock_recv(connection, length)
        yield kind


async def heard(connection: socket.socket) -> bytes:
    async with asyncio.timeout(30):
        return await asyncio.get_running_loop().sock_recv(connection, 100)


async def test_client_that_makes_no_sense_is_dropped_alone(relayed: Relayed) -> None:
    client = await relayed.client()
    with relayed.connect() as senseless:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(senseless, b"GET / HTTP/1.0\r\n\r\n")
        assert await heard(senseless) == b""
    assert (await run(client, shell("exit 5")))[1].code == 5
    with pytest.raises(EncampError, match="another's machine"):
        await client.unmount()


async def test_no_more_are_let_in_than_there_may_be(relayed: Relayed) -> None:
    clients = [await relayed.client() for _ in range(6)]
    with relayed.connect() as one_more:
        assert await heard(one_more) == b""
    await clients[0].close()
    while len(relayed.relay.clients) == 6:
        await asyncio.sleep(0.01)
    assert (await run(await relayed.client(), shell("echo in")))[0] == b"in\n"


async def test_client_that_hears_nothing_is_dropped_before_much_waits_for_it(
    relayed: Relayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "OUT_MOST", 1 << 20)
    with relayed.connect() as deaf:
        while not relayed.relay.clients:
            await asyncio.sleep(0.01)
        (client,) = relayed.relay.clients
        for number in range(100):
            client.take_call(Frame(Type.CALL, 0, CALL_BIT | number, bytes(PAYLOAD_LIMIT)))
        assert not relayed.relay.clients
        assert deaf.fileno() >= 0


async def test_clients_are_told_why_it_ends(relayed: Relayed) -> None:
    client = await relayed.client()
    stream = client.execute(shell("echo up; sleep 1000"))
    assert await stream.stdout.read() == b"up\n"
    relayed.relay.dismiss("enough")
    relayed.relay.close()
    with pytest.raises(EncampError, match="enough"):
        await stream.wait()


async def test_clients_lose_the_machine_with_the_session(relayed: Relayed) -> None:
    client = await relayed.client()
    stream = client.execute(shell("echo up; sleep 1000"))
    assert await stream.stdout.read() == b"up\n"
    await relayed.channel.close()
    with pytest.raises(EncampError) as raised:
        await stream.wait()
    assert raised.value.code is Code.MACHINE_LOST
    assert not relayed.relay.clients


async def test_client_that_goes_before_anybody_knows_the_machine_lost_is_let_go(
    relayed: Relayed,
) -> None:
    client = await relayed.client()
    for stream in [client.execute(shell("echo up; sleep 1000")) for _ in range(2)]:
        assert await stream.stdout.read() == b"up\n"
    # The first of its commands that is to be ended finds out.
    relayed.channel._sock.shutdown(socket.SHUT_WR)
    (served,) = relayed.relay.clients
    served.close()
    assert relayed.channel.error is not None
    assert not relayed.relay.clients
