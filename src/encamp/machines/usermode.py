"""User-mode Linux: machines whose kernel is an ordinary process of their owner's.

The machine's process is `encamp-supervisor`, a small program of ours. It runs the kernel as its
child and is the device behind the guest's ports, so guests are spoken to as those of QEMU are.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import string
from contextlib import ExitStack
from pathlib import Path

from encamp.guest.initramfs import guest_initramfs
from encamp.home import Home
from encamp.machines import sockets
from encamp.machines.directory import MachineDirectory
from encamp.machines.engine import (
    FILE_LIMIT,
    SHARES,
    Blueprint,
    Boot,
    Engine,
    Library,
    port_name,
)
from encamp.machines.hardware import PORTS, SHARES_PORT, Hardware
from encamp.machines.process import Launch, confinement
from encamp.machines.standing import standing
from encamp.model.driver import DriverError, Isolation
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB, format_bytes
from encamp.progress import Progress

SUPERVISOR = Path(__file__).with_name("encamp-supervisor")
KERNEL = Path(__file__).with_name("encamp-linux")
KERNEL_VARIABLE = "ENCAMP_KERNEL"
MONITOR = "supervisor"

ANSWER = 10.0
"""Seconds that the supervisor has to answer."""

FIRST_DESCRIPTOR = 16
"""Lower ones may be taken for the C library of the kernel."""

MEMORY_FILES = "/dev/shm"
"""Where the kernel makes the file that is the machine's memory; it has no name there."""

ARGUMENTS = (
    "quiet",
    "loglevel=4",
    "panic=-1",
    "noreboot",
    "noautogroup",
    "psi=0",
    "init_on_alloc=0",
    # The kernel would measure for 60 ms how fast it waits, which no driver of such a machine does.
    "lpj=39010304",
)


class UserMode(Engine):
    """A machine whose kernel is a process."""

    async def pause(self) -> None:
        await self._ask("pause")

    async def resume(self) -> None:
        await self._ask("resume")

    async def _ask(self, question: str) -> str:
        reader, writer = await asyncio.open_unix_connection(
            sock=sockets.connect(self.directory.path, MONITOR)
        )
        try:
            async with asyncio.timeout(ANSWER):
                writer.write(f"{question}\n".encode())
                answer = (await reader.readline()).decode().strip()
        except TimeoutError:
            answer = f"error: no answer within {ANSWER:.0f} seconds"
        finally:
            writer.close()
        if not answer:
            raise self.explain("The machine's process ended meanwhile.")
        if answer.startswith("error"):
            why = answer.removeprefix("error: ")
            raise self.explain(f"The machine does not {question}: {why}.", Code.WRONG_STATE)
        return answer


def is_one(directory: MachineDirectory) -> bool:
    return (directory.path / MONITOR).exists()


def own_kernel() -> Path | None:
    """The one that was built here, or that somebody names."""
    named = os.environ.get(KERNEL_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise DriverError(
                Code.PROGRAM_MISSING,
                f"{KERNEL_VARIABLE} names {named}, and there is no such file.",
                "Name a kernel of user-mode Linux, or leave the variable out.",
            )
        return Path(named)
    return KERNEL if KERNEL.exists() else None


def get_kernel(home: Home, least: Isolation, progress: Progress) -> None:
    """See that there is a kernel to run that keeps its guest in well enough: one that was built
    here, or Debian's, which is fetched."""
    if not SUPERVISOR.exists():
        raise EncampError(
            Code.PROGRAM_MISSING,
            "Encamp's supervisor of user-mode machines has not been built.",
            "Run 'make setup' in the source tree, or install the package again.",
        )
    if own_kernel() is not None:
        return
    if not Isolation.NAMESPACE.satisfies(least):
        raise DriverError(
            Code.CONFIGURATION,
            "With Debian's user-mode kernel a machine's isolation is 'namespace': root inside can"
            " reach the memory of that kernel, and by it the files that its process may read.",
            "Say --isolation namespace if that is enough. 'make kernel' in the source tree builds a"
            " kernel whose isolation is 'kernel'.",
        )
    if confinement() == "none":
        raise DriverError(
            Code.CONFIGURATION,
            "Debian's user-mode kernel shows root of a machine all files that the account of its"
            " process may read, and this host's kernel cannot confine that process: it has no"
            " Landlock.",
            "'make kernel' in the source tree builds one that does not; or leave --driver out.",
        )
    from encamp.images.usermode_kernel import usermode_kernel

    usermode_kernel(home, progress)


def boot_origin(
    home: Home, guest_program: Path, hardware: Hardware, extra: tuple[str, ...], directory: Path
) -> Boot:
    """What such a machine boots from. All but the guest program is in a kernel of ours; Debian's
    has modules, and a C library of its own."""
    kernel = own_kernel()
    modules, library = b"", None
    if kernel is None:
        from encamp.images import usermode_kernel

        debian = usermode_kernel.known(home)
        if debian is None:
            raise EncampError(
                Code.INPUT_MISSING,
                "The user-mode kernel has just been removed.",
                "Try again: it is fetched anew.",
                transient=True,
            )
        kernel, modules = debian.program, debian.modules.read_bytes()
        library = Library(debian.loader, debian.libraries / "libc.so.6")
        extra = (*usermode_kernel.ARGUMENTS, *extra)
    initramfs = directory / "initramfs"
    initramfs.write_bytes(modules + guest_initramfs(guest_program))
    initramfs.chmod(0o444)
    letters = string.ascii_lowercase
    roots = [f"ubd{letters[number]}" for number in range(hardware.layers)]
    arguments = [f"encamp.root={','.join(roots)}"]
    if hardware.has_disk:
        arguments.append(f"encamp.disk=ubd{letters[hardware.layers]}")
    if hardware.scratch:
        arguments.append(f"encamp.scratch={hardware.scratch // 1024}k")
    return Boot(kernel, initramfs, (*arguments, *extra), library=library)


def check_memory_file(wanted: int) -> None:
    """Is there room for the machine's memory, all of which may be used one day? A kernel whose
    memory file cannot grow dies at once."""
    promised = sum(max(0, one.memory - one.used) for one in standing() if one.is_file)
    free = shutil.disk_usage(MEMORY_FILES).free - promised
    if wanted > free:
        raise EncampError(
            Code.NO_ROOM,
            f"The machine's memory does not fit into {MEMORY_FILES}: it needs"
            f" {format_bytes(wanted // MIB * MIB)}, and {format_bytes(max(0, free) // MIB * MIB)}"
            " are free and promised to no other machine.",
            f"Ask for less with --memory, make room in {MEMORY_FILES}, or try again later.",
            transient=True,
        )


def launch(blueprint: Blueprint, origin: Boot) -> UserMode:
    """Start the process, with the lock held under which room is counted."""
    directory, hardware = blueprint.directory, blueprint.hardware
    check_memory_file(hardware.size.memory)
    plan = Launch(directory=directory.run, lock=directory.lock, log=directory.log)
    plan.tied = blueprint.tied
    plan.shielded = blueprint.shielded
    plan.user = blueprint.user
    plan.file_limit = FILE_LIMIT + hardware.size.memory + hardware.size.disk
    plan.confined = True
    plan.traces = True
    plan.readable += ["/proc", "/dev/urandom", "/dev/random"]
    plan.writable += [".", MEMORY_FILES]
    plan.devices += ["/dev/null"]
    with ExitStack() as held:

        def inherit(path: Path) -> int:
            opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fd = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR)
            finally:
                os.close(opened)
            held.callback(os.close, fd)
            plan.descriptors.append(fd)
            return fd

        def listen(name: str) -> int:
            listener = held.enter_context(sockets.listen(directory.path, name))
            plan.descriptors.append(listener.fileno())
            return listener.fileno()

        words = ["encamp-supervisor", "--name", f"encamp-{blueprint.name}"]
        words += ["--memory", f"{hardware.size.memory // 1024}K", "--console", "console"]
        words += ["--monitor", str(listen(MONITOR))]
        for number in range(PORTS):
            words += ["--port", f"encamp.{number}={listen(port_name(number))}"]
        words += ["--port", f"{SHARES_PORT}={listen(SHARES)}"]
        if origin.library is not None:
            loader, library = inherit(origin.library.loader), inherit(origin.library.file)
            words += ["--loader", str(loader), "--library", str(library)]
        words += ["--", f"/proc/self/fd/{inherit(origin.kernel)}"]
        words += [f"mem={hardware.size.memory // 1024}K", *ARGUMENTS]
        words.append(f"seccomp={'on' if blueprint.isolation is Isolation.NAMESPACE else 'off'}")
        words.append(f"initrd=/proc/self/fd/{inherit(origin.initramfs)}")
        for number, layer in enumerate(blueprint.image.layers):
            words.append(f"ubd{number}rc=/proc/self/fd/{inherit(layer)}")
        if blueprint.disk is not None:
            words.append(f"ubd{hardware.layers}=disk")
        words += origin.arguments
        plan.program = os.open(SUPERVISOR, os.O_RDONLY | os.O_CLOEXEC)
        held.callback(os.close, plan.program)
        return UserMode(directory, plan.start(words))
