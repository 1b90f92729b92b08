"""Copying files between the host and a machine, with the rules people know from `cp`.

A target that is a directory, or ends in '/', receives what is copied; any other target is the new
name of it. Without a target, things keep their name and land in the working directory.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from encamp.guest.channel import Channel, Exec, Exit, Stream
from encamp.model.errors import Code, EncampError
from encamp.model.job import Copy, User
from encamp.model.machine import Machine
from encamp.model.size import format_bytes

if TYPE_CHECKING:
    from encamp.guest.archive import Unpacked

PATTERN = frozenset("*?[")
SAID = 4096
"""How much of what a failing command says is kept."""
RAN_OUT = "The memory of the machine ran out"
"""How the guest program (memory.c) begins to say that the kernel has ended a command for it."""
ROOT = User(name="root", uid=0, gid=0, group="root", groups=(0,), home="/root")
"""Who sets a machine up."""


class Copied(msgspec.Struct):
    """What was copied, and what was not."""

    files: int = 0
    size: int = 0
    missing: list[str] = []
    problems: list[str] = []

    def join(self, other: Copied) -> None:
        self.files += other.files
        self.size += other.size
        self.missing += other.missing
        self.problems += other.problems

    @property
    def summary(self) -> str:
        return f"{self.files} files, {format_bytes(self.size)}"

    def add(self, unpacked: Unpacked) -> None:
        self.files += unpacked.files
        self.size += unpacked.size
        self.missing += unpacked.missing
        self.problems += [f"Not copied: {sentence}" for sentence in unpacked.errors]


class Files(Protocol):
    """Where the files come from that go into a machine, and where those go that come out. Each
    copy is known by its number among those of the same direction."""

    def pack(self, number: int, source: Path, name: str) -> AsyncIterator[bytes]:
        """An archive of what is to go in, in which it has this name."""

    async def unpack(self, number: int, copy: Copy, pieces: AsyncIterable[bytes]) -> Copied:
        """Take an archive of what comes out. Whatever is not wanted of it is left."""


class HostFiles:
    """Files of this host."""

    async def pack(self, number: int, source: Path, name: str) -> AsyncIterator[bytes]:
        from encamp.guest.archive import pack

        for piece in pack([(source, name)]):
            yield piece

    async def unpack(self, number: int, copy: Copy, pieces: AsyncIterable[bytes]) -> Copied:
        from encamp.guest.archive import Unpacker

        copied = Copied()
        directory, rename = place_outside(copy)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            copied.problems.append(f"Not copied: {copy.source}: {directory}: {error.strerror}")
            return copied
        with Unpacker(directory, rename=rename) as unpacker:
            async for piece in pieces:
                unpacker.feed(piece)
            copied.add(unpacker.finish())
        return copied


HOST_FILES = HostFiles()


def check_inputs(copies: Sequence[Copy]) -> None:
    """Refuse what is not there before a machine is made for it."""
    for copy in copies:
        path = Path(copy.source)
        if not path.exists():
            raise EncampError(
                Code.INPUT_MISSING,
                f"Cannot copy {copy.source} in: it does not exist.",
                "--in takes a file or directory of this host, then ':' and where to put it.",
            )


def check_outputs(copies: Sequence[Copy]) -> None:
    """Refuse what could not be written before a machine works for it."""
    for copy in copies:
        directory, _ = place_outside(copy)
        there = directory.absolute()
        while not there.exists():
            there = there.parent
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            why = "you may not write there" if there.is_dir() else "it is not a directory"
            raise EncampError(
                Code.COPY_FAILED,
                f"Cannot copy {copy.source} out to {directory}: {there}: {why}.",
                "--out takes a path in the machine, then ':' and where to put it on this host.",
            )


async def copy_in(
    channel: Channel,
    machine: Machine,
    copies: Sequence[Copy],
    workdir: str,
    user: User,
    files: Files = HOST_FILES,
) -> Copied:
    """Copy into the machine, as the user; a failure is an error: the job needs its input."""
    copied = Copied()
    for number, copy in enumerate(copies):
        source = Path(copy.source)
        directory, name = await _place_inside(channel, copy, source, workdir, user)
        stream = builtin(channel, user, "unpack", directory)
        stream.stdout.discard()
        async for piece in files.pack(number, source, name):
            if stream.unread:
                break
            copied.size += len(piece)
            await stream.write(piece)
        await stream.end()
        failure = f"{copy.source} could not be copied to {directory}/{name}"
        await success(stream, failure, machine)
        copied.files += 1
    return copied


async def copy_out(
    channel: Channel,
    copies: Sequence[Copy],
    workdir: str,
    user: User,
    files: Files = HOST_FILES,
) -> Copied:
    """Copy out of the machine; what is missing or unreadable is told, the rest is copied."""
    copied = Copied()
    for number, copy in enumerate(copies):
        stream = builtin(channel, user, "pack", workdir, copy.source)
        await stream.end()
        done = False

        async def whole(stream: Stream = stream, copy: Copy = copy) -> AsyncIterator[bytes]:
            nonlocal done
            async for piece in stream.stdout:
                yield piece
            await success(stream, f"{copy.source} could not be copied out")
            done = True

        try:
            copied.join(await files.unpack(number, copy, whole()))
        finally:
            if not done:
                stream.abandon()
    return copied


async def _place_inside(
    channel: Channel, copy: Copy, source: Path, workdir: str, user: User
) -> tuple[str, str]:
    """Directory and name that a file of the host gets in the machine."""
    own_name = source.name or source.resolve().name or "root"
    if copy.target is None:
        return workdir, own_name
    target = posixpath.join(workdir, copy.target)
    if copy.target.endswith("/") or await is_directory(channel, target, user):
        return posixpath.normpath(target), own_name
    directory, name = posixpath.split(posixpath.normpath(target))
    return directory, name


def place_outside(copy: Copy) -> tuple[Path, str | None]:
    """The host's directory for what comes out, and its new name if it gets one."""
    if copy.target is None:
        return Path(), None
    target = Path(copy.target)
    if copy.target.endswith("/") or target.is_dir() or PATTERN & set(copy.source):
        return target, None
    return target.parent, target.name


async def is_directory(channel: Channel, path: str, user: User) -> bool:
    stream = builtin(channel, user, "is-directory", path)
    await stream.end()
    stream.stdout.discard()
    stream.stderr.discard()
    return (await stream.wait()).code == 0


def builtin(channel: Channel, user: User, *words: str) -> Stream:
    """One of the guest program's own commands, with the user's rights."""
    return channel.execute(
        Exec(
            args=list(words),
            cwd="/",
            uid=user.uid,
            gid=user.gid,
            groups=list(user.groups),
            builtin=True,
        )
    )


async def success(stream: Stream, failure: str, into: Machine | None = None) -> None:
    """`into`: the machine that is copied into, and may have no room for all of it."""
    ended, words = await outcome(stream)
    if ended.code != 0:
        hint = "" if into is None else _cure(words, into)
        raise EncampError(Code.COPY_FAILED, f"{failure}.", hint, detail=words)


def _cure(said: str, machine: Machine) -> str:
    """What gives a machine more of that which it ran out of while it was copied into."""
    if RAN_OUT in said and machine.size.disk:
        return "--memory gives one more."
    return more_room(machine) if RAN_OUT in said or os.strerror(errno.ENOSPC) in said else ""


def more_room(machine: Machine) -> str:
    """What gives a machine more room for files."""
    if machine.size.disk:
        return "--disk gives one more."
    return "What it writes is kept in its memory: --memory gives one more, or --disk a disk."


async def outcome(stream: Stream) -> tuple[Exit, str]:
    """How a command ended, and the last of what it said on standard error, as it may be shown:
    the machine is not to control anybody's terminal."""
    from encamp.guest.archive_read import printable

    said = b""
    async for piece in stream.stderr:
        said = (said + piece)[-SAID:]
    ended = await stream.wait()
    return ended, "\n".join(map(printable, said.strip().splitlines())) or ended.text
