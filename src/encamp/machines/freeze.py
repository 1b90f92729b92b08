"""Making a template: boot the environment once, wait until its guest answers, freeze it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine
from pathlib import Path

from encamp.guest.channel import Channel, Exec, Hello
from encamp.guest.initramfs import guest_initramfs
from encamp.home import SYSTEM_HOME, Home
from encamp.machines import sockets, volumes
from encamp.machines.directory import MachineDirectory
from encamp.machines.engine import Blueprint, Boot, Engine, port_name
from encamp.machines.hardware import Hardware, drive_names
from encamp.machines.kernel import unpack_kernel
from encamp.machines.qemu import launch
from encamp.machines.room import full_disk_named, is_full
from encamp.machines.storage import MADE_ON, backend
from encamp.machines.template import (
    CONSOLE,
    MEMORY,
    STATE,
    Stamp,
    Template,
    TemplateStore,
    file_digest,
    freeze_file,
    punch_holes,
    qemu_version,
)
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.progress import Progress
from encamp.workplace import workplace

GUEST_PROGRAM = Path(__file__).parent.parent / "guest" / "encamp-guest"

LOOK = 1.0
"""Seconds between two looks at the disk below a template that is being made."""

NOBODY = b"\xff" * 16
"""The id of a machine that is only being made into a template. Unlike the id a guest is born with:
so the template's own greeting makes the guest do all it does when it gets a new identity."""

WARM_UP = """
for file in /bin/busybox /bin/sh /bin/bash /bin/echo /bin/cat /bin/ls /bin/true /usr/bin/env \
        /lib64/ld-linux-x86-64.so.2 /lib/x86_64-linux-gnu/libc.so.6 \
        /lib/x86_64-linux-gnu/libtinfo.so.6 /etc/ld.so.cache; do
    [ -f "$file" ] && cat "$file" >/dev/null
done
touch /etc/passwd /etc/group /etc/resolv.conf
mkdir -p /home /root
for directory in /home /root /tmp /mnt /srv; do
    [ -d "$directory" ] && touch -r "$directory" "$directory"
done
echo
"""
"""Run before freezing: what the first command of a clone needs is then in memory already, and the
files that a new identity or user changes, and directories in which shares are shown, are in the
writable layer."""


def boot_origin(
    home: Home, image: Image, hardware: Hardware, extra: tuple[str, ...], directory: Path
) -> Boot:
    """What a machine boots from; kernel and first programs are made ready in `directory`."""
    if not GUEST_PROGRAM.exists():
        raise EncampError(
            Code.PROGRAM_MISSING,
            "Encamp's guest program has not been built.",
            "Run 'make setup' in the source tree, or install the package again.",
        )
    initramfs = directory / "initramfs"
    initramfs.write_bytes(image.modules.read_bytes() + guest_initramfs(GUEST_PROGRAM))
    initramfs.chmod(0o444)
    kernel = unpack_kernel(image.kernel, directory / "kernel", home)
    roots, disk = drive_names(hardware)
    arguments = [f"encamp.root={','.join(roots)}"]
    if disk is not None:
        arguments.append(f"encamp.disk={disk}")
    if hardware.scratch:
        arguments.append(f"encamp.scratch={hardware.scratch // 1024}k")
    return Boot(kernel=kernel, initramfs=initramfs, arguments=(*arguments, *extra))


async def make_template(
    home: Home,
    *,
    key: str,
    environment: Environment,
    image: Image,
    hardware: Hardware,
    user: tuple[int, int] | None,
    progress: Progress,
    shared: Path | None = SYSTEM_HOME,
) -> Template:
    began = time.monotonic()
    store = TemplateStore(home, shared)
    with (
        workplace(home, f"template-{environment.name}") as place,
        # One that becomes a template is in neither of them any more.
        volumes.released(place.directory, key, "made"),
        # Innermost: the disk is asked before anything is cleared away.
        full_disk_named(home.root, f"the template of '{environment.name}' was made"),
    ):
        directory = MachineDirectory(place.directory / key)
        directory.make(user, 0)
        made = place.directory / "made"
        made.mkdir(mode=0o700)
        memory = made / MEMORY
        with memory.open("xb") as file:
            file.truncate(hardware.size.memory)
        memory.chmod(0o600)
        if user is not None:
            os.chown(memory, *user)
        storage = backend(MADE_ON[hardware.kept], home)
        storage.make(directory, hardware.size.disk, user)
        origin = boot_origin(home, image, hardware, environment.kernel_arguments, place.directory)
        origin.memory = memory
        progress.update(f"booting '{environment.name}' once, to clone it from then on")
        blueprint = Blueprint("template", directory, hardware, image, user, tied=True)
        blueprint.disk = storage.attach(directory)
        engine = launch(blueprint, origin)
        try:
            await answer_in_time(engine, environment, home.root, greet_template(engine))
            progress.update(f"freezing '{environment.name}'")
            await engine.unless_ended(engine.save(made / STATE, memory_is_mapped=True))
        finally:
            await engine.process.kill()
            engine.process.close()
        await asyncio.to_thread(punch_holes, memory)
        (made / CONSOLE).write_text(directory.console_tail())
        names = [MEMORY, STATE, CONSOLE, *storage.keep(directory, made)]
        for name in names:
            freeze_file(made / name, user)
        template = Template(
            key=key,
            environment=environment.name,
            image=image.digest,
            hardware=hardware,
            qemu=qemu_version(),
            created=time.time(),
            seconds=time.monotonic() - began,
            stamps={name: Stamp.of(made / name) for name in names},
            digests={name: await asyncio.to_thread(file_digest, made / name) for name in names},
        )
        store.keep(template, made)
    return template


async def greet_template(engine: Engine) -> None:
    """Wait until the guest of a machine that nobody owns answers, and let it run something."""
    connection = sockets.connect(engine.directory.path, port_name(0))
    channel = await Channel.open(connection, Hello(machine=NOBODY, hostname="template"), fresh=True)
    try:
        await channel.welcome()
        # The second time around, even the ways through the kernel have been trodden.
        for _ in range(2):
            warm_up = channel.execute(Exec(args=["/bin/sh", "-c", WARM_UP], cwd="/"))
            warm_up.stdout.discard()
            warm_up.stderr.discard()
            await warm_up.end()
            await warm_up.wait()
    finally:
        await channel.close()


async def answer_in_time(
    engine: Engine, environment: Environment, disk: Path, work: Coroutine[object, object, None]
) -> None:
    """Wait for a booting guest to answer, but not for ever, and not once the disk below its memory
    is full: under KVM its processor then takes the same page fault again and again."""
    limit = environment.ready.timeout
    silent = f"The guest of environment '{environment.name}' did not answer"
    waiting = asyncio.create_task(engine.unless_ended(work))
    try:
        async with asyncio.timeout(limit):
            while not (await asyncio.wait({waiting}, timeout=LOOK))[0]:
                if is_full(disk):
                    raise engine.explain(f"{silent}, and the disk is full.", Code.NO_ANSWER)
        waiting.result()
    except TimeoutError:
        raise engine.explain(f"{silent} within {limit:.0f} seconds.", Code.NO_ANSWER) from None
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
