"""The ports of a machine, as its clients find them."""

from __future__ import annotations

import hashlib
import os
import random
import select
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.machines.supervisor.running import (
    COMMANDS,
    PORTS,
    Machine,
    is_idle,
    line,
    running,
    until,
)

MIB = 1 << 20


def exchange(client: socket.socket, data: bytes) -> bytes:
    """Say something to somebody who says it back meanwhile, and hear it."""
    client.setblocking(False)
    heard = bytearray()
    rest = memoryview(data)
    end = time.monotonic() + 60
    while len(heard) < len(data):
        readable, writable, _ = select.select([client], [client] if rest else [], [], 20)
        assert readable or writable, f"{len(heard)} of {len(data)} bytes"
        assert time.monotonic() < end
        if writable:
            rest = rest[client.send(rest[:MIB]) :]
        if readable:
            piece = client.recv(MIB)
            assert piece
            heard += piece
    client.settimeout(20)
    return bytes(heard)


def silent(client: socket.socket, seconds: float = 0.2) -> bool:
    return not select.select([client], [], [], seconds)[0]


def test_guest_finds_all_ports_by_name(machine: Machine) -> None:
    assert machine.command("names").split() == list(PORTS)


@pytest.mark.parametrize("size", [1, 4096, 4097, MIB, 64 * MIB])
def test_what_is_said_comes_back(machine: Machine, size: int) -> None:
    data = random.Random(size).randbytes(size)
    with machine.connect("encamp.0") as client:
        heard = exchange(client, data)
        assert hashlib.sha256(heard).digest() == hashlib.sha256(data).digest()
        assert silent(client)


def test_many_small_messages_keep_their_order(machine: Machine) -> None:
    with machine.connect("encamp.0") as client:
        rng = random.Random(1)
        for _ in range(2000):
            data = rng.randbytes(rng.choice([1, 7, 100, 4095, 4096, 4097, 9000]))
            client.sendall(data)
            got = b""
            while len(got) < len(data):
                got += client.recv(65536)
            assert got == data


def test_ports_work_at_the_same_time(machine: Machine) -> None:
    clients = [machine.connect(f"encamp.{number}") for number in range(4)]
    data = [random.Random(number).randbytes(4 * MIB) for number in range(4)]
    heard = [bytearray() for _ in clients]
    rest = [memoryview(piece) for piece in data]
    for client in clients:
        client.setblocking(False)
    end = time.monotonic() + 60
    while any(len(heard[i]) < len(data[i]) for i in range(4)):
        assert time.monotonic() < end
        select.select(clients, [clients[i] for i in range(4) if rest[i]], [], 5)
        for i, client in enumerate(clients):
            with suppress(BlockingIOError):
                heard[i] += client.recv(MIB)
            if rest[i]:
                with suppress(BlockingIOError):
                    rest[i] = rest[i][client.send(rest[i][:65536]) :]
    assert [bytes(piece) for piece in heard] == data
    for client in clients:
        client.close()


def test_client_leaves_and_another_comes(machine: Machine) -> None:
    for number in range(50):
        with machine.connect("encamp.0") as client:
            client.sendall(b"%d\n" % number)
            assert line(client) == str(number)


def test_others_wait_until_a_client_has_left(machine: Machine) -> None:
    first = machine.connect("encamp.0")
    assert exchange(first, b"first") == b"first"
    second = machine.connect("encamp.0")
    second.sendall(b"second")
    assert silent(second)
    assert exchange(first, b"first again") == b"first again"
    first.close()
    assert second.recv(100) == b"second"
    second.close()


def test_client_that_speaks_before_the_guest_is_up_is_heard(
    tmp_path: Path, initramfs: Path
) -> None:
    with running(tmp_path / "machine", initramfs) as machine:
        clients = [machine.connect(f"encamp.{number}") for number in range(4)]
        for number, client in enumerate(clients):
            client.sendall(b"hello %d" % number)
        for number, client in enumerate(clients):
            assert client.recv(100) == b"hello %d" % number
            client.close()


def test_client_that_speaks_and_leaves_at_once_is_heard(machine: Machine) -> None:
    with machine.connect(COMMANDS) as client:
        client.sendall(b"write 7 65536 words\n")
    with machine.connect("encamp.7") as client:
        got = b""
        while len(got) < 65536:
            got += client.recv(65536)
        assert got.startswith(b"wordswords")


def test_guest_sees_whether_anybody_is_there(machine: Machine) -> None:
    assert machine.command("poll 6") == "hup"
    client = machine.connect("encamp.6")
    until(lambda: machine.command("poll 6") == "out")
    client.close()
    until(lambda: machine.command("poll 6") == "hup")
    client = machine.connect("encamp.6")
    until(lambda: machine.command("poll 6") == "out")
    client.close()


def test_what_is_written_while_nobody_is_there_is_waited_with(machine: Machine) -> None:
    assert machine.command("write 6 1000 waits") == "ok"
    time.sleep(0.2)
    with machine.connect("encamp.6") as client:
        got = b""
        while len(got) < 1000:
            got += client.recv(65536)
        assert got == b"waits" * 200


def test_what_nobody_has_read_goes_with_its_client(machine: Machine) -> None:
    """The guest has written more than its ring and the socket hold."""
    with machine.connect("encamp.6"):
        assert machine.command(f"write 6 {64 * MIB} for-the-first") == "ok"
        time.sleep(0.3)
    # A writer who is at it goes on, for whoever comes next: that is the guest's business.
    with machine.connect("encamp.6") as client:
        assert client.recv(100)
    with machine.connect("encamp.0") as client:
        assert exchange(client, b"still there") == b"still there"


def test_client_that_does_not_read_holds_up_nobody(machine: Machine) -> None:
    with machine.connect("encamp.6") as slow, machine.connect("encamp.0") as client:
        assert machine.command(f"write 6 {16 * MIB} 0123456789abcdef") == "ok"
        time.sleep(0.3)
        # Neither does it keep the supervisor busy.
        until(lambda: is_idle(machine))
        data = os.urandom(MIB)
        assert exchange(client, data) == data
        got = bytearray()
        while len(got) < 16 * MIB:
            piece = slow.recv(MIB)
            assert piece
            got += piece
        assert bytes(got) == b"0123456789abcdef" * MIB


def test_guest_that_does_not_read_holds_up_nobody(machine: Machine) -> None:
    assert machine.command("names")
    with machine.connect("encamp.4") as mute, machine.connect("encamp.0") as client:
        sent = 0
        while select.select([], [mute], [], 0.5)[1]:
            sent += mute.send(bytes(1024))
        # What the guest's driver has room for, and the socket.
        assert 1 << 17 < sent < 2 * MIB
        until(lambda: is_idle(machine))
        data = os.urandom(MIB)
        assert exchange(client, data) == data


def test_port_that_nobody_has_opened_keeps_what_was_said(machine: Machine) -> None:
    with machine.connect("encamp.6") as client:
        client.sendall(b"kept")
        assert silent(client)
        with machine.connect("encamp.0") as other:
            assert exchange(other, b"heard") == b"heard"


def test_driver_can_be_bound_again(machine: Machine) -> None:
    for turn in range(3):
        assert machine.command("rebind") == "ok"
        time.sleep(0.3)
        assert machine.command("names").split() == list(PORTS)
        with machine.connect("encamp.0") as client:
            data = random.Random(turn).randbytes(MIB)
            assert exchange(client, data) == data
    assert machine.said() == ""
