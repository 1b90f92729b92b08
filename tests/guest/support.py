"""What the tests of the guest program share."""

from __future__ import annotations

import asyncio
import os
import socket
from asyncio.subprocess import Process
from dataclasses import dataclass, field
from pathlib import Path

from encamp.guest.channel import Channel, Exec, Exit, Hello, Output
from encamp.guest.frames import U32, U64, Key, Type, encode, encode_fields

SOURCES = Path(__file__).parents[2] / "src" / "encamp" / "guest" / "program"
MACHINE = bytes(range(16))


def welcome(nonce: bytes) -> bytes:
    """What a guest answers."""
    fields = [
        (Key.VERSION, U32.pack(1)),
        (Key.NONCE, nonce),
        (Key.MACHINE, bytes(16)),
        (Key.PROGRAM, b"1"),
        (Key.UPTIME, U64.pack(5)),
    ]
    return encode(Type.WELCOME, 0, encode_fields(fields))


@dataclass
class Guest:
    """A running guest program and the host's end of its socket."""

    process: Process
    sock: socket.socket
    channels: list[Channel] = field(default_factory=list)

    async def open(self, *, fresh: bool = True, nonce: bytes | None = None) -> Channel:
        """A session; several may follow each other, like hosts that come and go on a port."""
        await self.hang_up()
        hello = Hello(machine=MACHINE, hostname="test", nonce=nonce or os.urandom(16))
        channel = await Channel.open(self.sock.dup(), hello, fresh=fresh)
        self.channels.append(channel)
        return channel

    async def hang_up(self) -> None:
        """What its host was sent and did not read stays in the socket, as it does in a port."""
        while self.channels:
            await self.channels.pop().close()

    def memory(self) -> int:
        """Resident bytes of the guest program."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


async def read_all(output: Output) -> bytes:
    return b"".join([chunk async for chunk in output])


async def run(channel: Channel, *args: str, stdin: bytes = b"") -> tuple[bytes, bytes, Exit]:
    """A command from beginning to end: what it printed on both outputs, and how it ended."""
    environment = {"PATH": "/usr/bin:/bin"}
    stream = channel.execute(
        Exec(args=list(args), env=environment, uid=os.getuid(), gid=os.getgid())
    )

    async def write() -> None:
        await stream.write(stdin)
        await stream.end()

    _, out, err = await asyncio.gather(write(), read_all(stream.stdout), read_all(stream.stderr))
    return out, err, await stream.wait()
