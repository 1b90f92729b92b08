"""Encamp's own guest program in a machine of user-mode Linux."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp.describe.shipped import MINI
from encamp.guest.channel import Channel, Exec, Hello
from encamp.guest.initramfs import guest_initramfs
from encamp.home import Home
from encamp.images.store import ImageStore
from tests.machines.supervisor import running as supervised
from tests.machines.supervisor.running import PACKAGE, Machine, running

GUEST = PACKAGE / "guest" / "encamp-guest"
SERVER = PACKAGE / "machines" / "encamp-shares"
NOBODY = b"\xff" * 16


@pytest.fixture
def machine(tmp_path: Path, built: Home) -> Iterator[Machine]:
    image = ImageStore(built, shared=None).find(MINI.name, MINI.digest())
    assert image is not None
    initramfs = tmp_path / "initramfs"
    initramfs.write_bytes(supervised.KERNEL.modules + guest_initramfs(GUEST))
    root = f"ubd0rc={image.layers[0]}"
    with running(tmp_path / "machine", initramfs, "encamp.root=ubda", root, roles="-" * 9) as made:
        yield made


async def speak(end: socket.socket, *, fresh: bool = True) -> Channel:
    channel = await Channel.open(end, Hello(machine=NOBODY, hostname="here"), fresh=fresh)
    async with asyncio.timeout(20):
        await channel.welcome()
    return channel


async def shell(channel: Channel, words: str, given: bytes = b"") -> tuple[int, bytes]:
    stream = channel.execute(Exec(args=["/bin/sh", "-c", words], cwd="/"))

    async def give() -> None:
        for begin in range(0, len(given), 65536):
            await stream.write(given[begin : begin + 65536])
        await stream.end()

    giving = asyncio.create_task(give())
    said = b""
    while piece := await stream.stdout.read():
        said += piece
    await giving
    return (await stream.wait()).value, said


async def test_guest_program_answers_and_runs_commands(machine: Machine) -> None:
    # Said before anybody is there to hear it.
    async with await speak(machine.connect("encamp.0")) as channel:
        assert await shell(channel, "echo hello; exit 3") == (3, b"hello\n")
        data = os.urandom(8 << 20)
        assert await shell(channel, "cat", data) == (0, data)
        channel.poweroff()
        assert await asyncio.to_thread(machine.process.wait, 20) == 0
    assert machine.said() == ""
    assert "encamp-guest: ready" in machine.console.read_text()


async def test_ports_are_used_side_by_side_and_one_after_the_other(machine: Machine) -> None:
    async with await speak(machine.connect("encamp.0")) as one:
        async with await speak(machine.connect("encamp.7")) as two:
            said = await asyncio.gather(*(shell(end, "sleep 0.2; echo $$") for end in (one, two)))
            assert len(set(said)) == 2
        for _ in range(5):
            async with await speak(machine.connect("encamp.7"), fresh=False) as two:
                assert await shell(two, "echo again") == (0, b"again\n")


async def test_paused_guest_goes_on_with_what_it_was_doing(machine: Machine) -> None:
    async with await speak(machine.connect("encamp.0")) as channel:
        work = asyncio.create_task(
            shell(channel, "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo $i")
        )
        while not work.done():
            assert await asyncio.to_thread(machine.ask, "pause") == "ok"
            await asyncio.sleep(0.05)
            assert await asyncio.to_thread(machine.ask, "resume") == "ok"
            await asyncio.sleep(0.05)
        assert await work == (0, b"20000\n")


async def test_directory_of_the_host_is_shown(machine: Machine, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_bytes(b"from the host\n")
    with machine.connect("encamp.shares") as end:
        end.setblocking(True)
        words = [str(SERVER), "--channel", str(end.fileno()), "--share", str(source)]
        server = await asyncio.create_subprocess_exec(*words, pass_fds=[end.fileno()])
    async with await speak(machine.connect("encamp.0")) as channel:
        await channel.mount("share0", "/mnt")
        assert await shell(channel, "cat /mnt/file; echo back > /mnt/made") == (
            0,
            b"from the host\n",
        )
        assert (source / "made").read_text() == "back\n"
        await channel.unmount()
    machine.process.terminate()
    assert await asyncio.to_thread(machine.process.wait, 20) == 143
    async with asyncio.timeout(20):
        assert await server.wait() == 0
