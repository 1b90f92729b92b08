"""Sessions with the guest of a machine: one per process, several at a time."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

from encamp.agent.caller import group_names
from encamp.guest import messages as guest
from encamp.guest.channel import Channel, Hello
from encamp.machines import sockets
from encamp.machines.directory import MachineDirectory
from encamp.machines.engine import Engine, port_name
from encamp.machines.hardware import PORTS
from encamp.model.errors import Code, EncampError
from encamp.model.job import User
from encamp.model.machine import Machine

USER_NETWORK = guest.Network(address="10.0.2.15", prefix=24, gateway="10.0.2.2", dns="10.0.2.3")
"""What QEMU's user network gives its one guest."""

ANSWER_TIMEOUT = 30.0
"""Seconds a guest that runs already has to answer."""


class Port:
    """One of a machine's guest channels, ours for as long as we hold its lock."""

    def __init__(self, number: int, fd: int, fresh: bool) -> None:
        self.number = number
        self.fresh = fresh
        """Nobody has ever spoken on it: the guest waits for the beginning of a frame."""
        self._fd = fd

    @classmethod
    def take(cls, directory: MachineDirectory) -> Port:
        for number in range(PORTS):
            path = directory.path / f"{port_name(number)}.lock"
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError as error:
                raise EncampError(
                    Code.MACHINE_LOST, "The machine was removed just now.", transient=True
                ) from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fresh = os.fstat(fd).st_size == 0
                if fresh:
                    os.write(fd, b"used")
                return cls(number, fd, fresh)
            except BlockingIOError:
                os.close(fd)
            except BaseException:
                os.close(fd)
                raise
        raise EncampError(
            Code.NO_ROOM,
            f"All {PORTS} channels of the machine are in use.",
            "Wait until a command in it has ended.",
            transient=True,
        )

    def connect(self, directory: MachineDirectory) -> socket.socket:
        return sockets.connect(directory.path, port_name(self.number))

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def hello(machine: Machine) -> Hello:
    return Hello(machine=bytes.fromhex(machine.id), hostname=machine.name)


def set_up(channel: Channel, owner: User, machine: Machine) -> list[Awaitable[None]]:
    """Tell a new guest who its user is and what it is connected to."""
    known = guest.User(
        name=owner.name,
        uid=owner.uid,
        gid=owner.gid,
        group=owner.group,
        groups=group_names(owner),
        home=owner.home,
    )
    settings = mount_shares(channel, machine)
    if (network := network_of(machine)) is not None and not machine.whole:
        settings.append(channel.network(network))
    # After the shares: the user's home may be one of them.
    settings.append(channel.user(known))
    return settings


def network_of(machine: Machine) -> guest.Network | None:
    """What a machine has on its network, if it has one."""
    link = machine.link
    if link is None:
        return USER_NETWORK if machine.network == "user" else None
    return guest.Network(
        address=link.address,
        prefix=link.prefix,
        gateway=link.gateway,
        dns=link.dns,
        mac=link.mac,
        name=machine.name,
        hosts=link.hosts,
    )


def mount_shares(channel: Channel, machine: Machine) -> list[Awaitable[None]]:
    return [
        channel.mount(f"share{number}", share.path, readonly=share.readonly)
        for number, share in enumerate(machine.shares)
    ]


@asynccontextmanager
async def session(machine: Machine, engine: Engine) -> AsyncIterator[Channel]:
    """Speak with the guest of a running machine."""
    port = Port.take(engine.directory)
    try:
        connection = port.connect(engine.directory)
        channel = await Channel.open(connection, hello(machine), fresh=port.fresh)
        try:
            await answered(machine, engine, channel)
            yield channel
        finally:
            await channel.close()
    finally:
        port.release()


async def answered(machine: Machine, engine: Engine, channel: Channel) -> None:
    async def welcome() -> None:
        await channel.welcome()

    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            await engine.unless_ended(welcome())
    except TimeoutError:
        raise engine.explain(
            f"The guest of machine {machine.name} did not answer within"
            f" {ANSWER_TIMEOUT:.0f} seconds.",
            Code.NO_ANSWER,
        ) from None
