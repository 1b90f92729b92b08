"""Saving a machine: what it changed becomes an image, a layer over the one it was made of.

The machine goes on meanwhile. A file that is being written is saved as it is at that moment; so
are two files that belong together. Whoever needs more stops what is writing first.
"""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import msgspec

from encamp import programs
from encamp.agent.copying import ROOT, builtin, outcome
from encamp.agent.keeper import Keeper
from encamp.guest.changes import Changes, Edit, Limits
from encamp.guest.channel import Channel
from encamp.machines.account import process_user
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.machine import Machine, Move
from encamp.model.recipe import Compression
from encamp.model.size import format_bytes
from encamp.progress import FIGURES, Progress
from encamp.workplace import Workplace, workplace

LEFT_OUT = (
    *("etc/hostname", "etc/machine-id", "etc/resolv.conf", "var/lib/dbus/machine-id"),
    *("var/lib/systemd/random-seed", "var/lib/systemd/credential.secret"),
    *(
        f"etc/ssh/ssh_host_{kind}_key{part}"
        for kind in ("rsa", "dsa", "ecdsa", "ed25519")
        for part in ("", ".pub", "-cert.pub")
    ),
    *("tmp/", "run/", "dev/", "proc/", "sys/"),
)
"""What is the machine's own, and no part of an image; of those that end in a slash, what is in
them."""

FEWEST_ENTRIES = 1 << 16
BYTES_PER_ENTRY = 512
"""No file system of a machine's keeps a file with less than this."""
SHOWN_EVERY = 4 << 20


class Saved(msgspec.Struct, frozen=True):
    """What came of saving a machine."""

    name: str
    digest: str
    size: int
    """Bytes it takes on this host, over its parent."""
    parent: str | None
    layers: int


async def save(
    keeper: Keeper,
    machine: Machine,
    name: str,
    progress: Progress,
    compression: Compression = Compression.ZSTD,
) -> Saved:
    """Make an image of a running machine. Nothing is left of it if that fails or is interrupted;
    the machine goes on in any case."""
    from encamp.images.reference import check_tag

    check_tag(name)
    machine.check(Move.SAVE)
    parent = keeper.image_of(machine)
    if parent.disk is not None:
        raise EncampError(
            Code.WRONG_STATE,
            f"Machine {machine.name} is a whole disk, and cannot be saved as a layer.",
            "Copy what you need out of it with 'encamp copy'.",
        )
    with workplace(keeper.home, f"save-{machine.name}") as work, keeper.maker.images.using(parent):
        work.directory.chmod(0o700)
        changes = work.directory / "changes.tar"
        try:
            async with keeper.speak(machine) as (engine, channel):
                await engine.unless_ended(_read(channel, machine, changes, progress))
        except OSError as error:
            raise _not_written(error, machine) from error
        return await _make_image(
            keeper, work, changes, machine, parent, name, compression, progress
        )


async def _read(channel: Channel, machine: Machine, target: Path, progress: Progress) -> None:
    """All that the machine changed, as an archive."""
    what = f"reading what machine {machine.name} changed"
    handed = (path.strip("/") for path in machine.handed)
    stream = builtin(channel, ROOT, "pack-changes", *LEFT_OUT, *handed)
    await stream.end()
    shown = -SHOWN_EVERY
    with target.open("xb") as out:
        changes = Changes(out, limits_of(machine), edits_for(machine))
        try:
            async for piece in stream.stdout:
                changes.feed(piece)
                if out.tell() - shown >= SHOWN_EVERY:
                    shown = out.tell()
                    progress.update(f"{what}{FIGURES}{format_bytes(shown)}")
        except BaseException:
            stream.abandon()
            raise
        ended, said = await outcome(stream)
        if ended.code != 0:
            raise EncampError(
                Code.COPY_FAILED, f"Machine {machine.name} cannot be saved: {said or ended.code}."
            )
        changes.finish()


def limits_of(machine: Machine) -> Limits:
    """Nothing can have written more than where the machine writes to has room for."""
    room = machine.size.disk or machine.size.memory
    return Limits(data=room, entries=max(FEWEST_ENTRIES, room // BYTES_PER_ENTRY))


def edits_for(machine: Machine) -> dict[bytes, Edit]:
    """Take back what Encamp itself wrote into the image's files for this one machine."""
    edits: dict[bytes, Edit] = {b"etc/hosts": without_own_address}
    if machine.owner != 0:
        uid, gids = machine.owner, _groups_of(machine.owner)
        edits[b"etc/passwd"] = lambda content: without_number(content, uid)
        edits[b"etc/group"] = lambda content: without_number(content, *gids)
    return edits


def without_own_address(content: bytes) -> bytes:
    def own(line: bytes) -> bool:
        return line.split()[:1] == [b"127.0.1.1"] or line.rstrip().endswith(b"# of this machine")

    return b"".join(line for line in content.splitlines(keepends=True) if not own(line))


def without_number(content: bytes, *numbers: int) -> bytes:
    """Without the lines that the guest program adds for users or groups: no password, and of a
    user nothing that tells who it is."""

    def added(line: bytes) -> bool:
        words = line.rstrip(b"\n").split(b":")
        return words[1:2] == [b"*"] and words[2:3] in known and not any(words[4:5])

    known = [[str(number).encode()] for number in numbers]

    return b"".join(line for line in content.splitlines(keepends=True) if not added(line))


def _groups_of(uid: int) -> set[int]:
    import pwd

    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return {os.getegid(), *os.getgroups()}
    return {entry.pw_gid, *os.getgrouplist(entry.pw_name, entry.pw_gid), *os.getgroups()}


async def _make_image(
    keeper: Keeper,
    work: Workplace,
    changes: Path,
    machine: Machine,
    parent: Image,
    name: str,
    compression: Compression,
    progress: Progress,
) -> Saved:
    from encamp.images.placing import Readers
    from encamp.images.saved import place_saved

    # What somebody did in a machine is nobody else's business until it is published.
    runs_as = process_user(os.geteuid())
    making = asyncio.ensure_future(
        asyncio.to_thread(
            place_saved,
            keeper.maker.images,
            work,
            changes,
            parent,
            name,
            origin=f"saved {machine.id}",
            compression=compression,
            progress=progress,
            readers=Readers(None if runs_as is None else runs_as[1]),
        )
    )
    try:
        image = await asyncio.shield(making)
    except asyncio.CancelledError:
        # The thread would go on: what it runs must be ended for it. What it works with is there
        # until it has noticed.
        programs.stop_all()
        await asyncio.wait({making})
        raise
    except OSError as error:
        raise _not_written(error, machine) from error
    except EncampError as error:
        raise _not_packed(error, machine, changes) from error
    return Saved(
        name=name,
        digest=image.digest,
        size=image.size,
        parent=None if image.parent is None else image.parent.digest,
        layers=len(image.layers),
    )


def _not_written(error: OSError, machine: Machine) -> EncampError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    why = "the disk is full" if full else error.strerror or str(error)
    return _not_saved(Code.DISK_FULL, machine, why)


def _not_packed(error: EncampError, machine: Machine, changes: Path) -> EncampError:
    """Not every program says why it failed; with less room than there was to pack, it is that."""
    if error.code is not Code.DISK_FULL and error.code is not Code.BUILD_FAILED:
        return error
    room = os.statvfs(changes.parent)
    needed = changes.stat().st_blocks * 512 if changes.exists() else 0
    if error.code is Code.DISK_FULL or room.f_bavail * room.f_frsize < needed:
        return _not_saved(Code.DISK_FULL, machine, "the disk is full", error.detail)
    return _not_saved(error.code, machine, error.sentence.rstrip("."), error.detail)


def _not_saved(code: Code, machine: Machine, why: str, detail: str = "") -> EncampError:
    room = "Make room and save it again." if code is Code.DISK_FULL else ""
    return EncampError(
        code,
        f"Machine {machine.name} could not be saved: {why}.",
        f"Nothing was left half done, and the machine goes on. {room}".rstrip(),
        detail=detail,
    )
