"""User-mode Linux: machines whose kernel is an ordinary process of their owner's.

The machine's process is `encamp-supervisor`, a small program of ours. It runs the kernel as its
child and is the device behind the guest's ports, so guests are spoken to as those of QEMU are.
"""

from __future__ import annotations

import asyncio
import os
import string
from contextlib import ExitStack
from pathlib import Path

from encamp.guest.initramfs import guest_initramfs
from encamp.machines import sockets
from encamp.machines.directory import MachineDirectory
from encamp.machines.engine import FILE_LIMIT, SHARES, Blueprint, Boot, Engine, port_name
from encamp.machines.hardware import PORTS, SHARES_PORT, Hardware
from encamp.machines.process import Launch
from encamp.model.driver import Isolation
from encamp.model.errors import Code, EncampError

SUPERVISOR = Path(__file__).with_name("encamp-supervisor")
KERNEL = Path(__file__).with_name("encamp-linux")
KERNEL_VARIABLE = "ENCAMP_KERNEL"
MONITOR = "supervisor"

ANSWER = 10.0
"""Seconds that the supervisor has to answer."""

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


def find_kernel() -> Path:
    """The kernel that is run; a clear refusal where there is none."""
    kernel = Path(os.environ.get(KERNEL_VARIABLE, KERNEL))
    if kernel.exists() and SUPERVISOR.exists():
        return kernel
    missing = "kernel" if SUPERVISOR.exists() else "supervisor"
    raise EncampError(
        Code.PROGRAM_MISSING,
        f"This host has no {missing} for machines of the driver 'usermode'.",
        "'make kernel' in the source tree builds it; or leave --driver out.",
    )


def boot_origin(
    guest_program: Path, hardware: Hardware, extra: tuple[str, ...], directory: Path
) -> Boot:
    """What such a machine boots from: all but the guest program is in its kernel."""
    initramfs = directory / "initramfs"
    initramfs.write_bytes(guest_initramfs(guest_program))
    initramfs.chmod(0o444)
    letters = string.ascii_lowercase
    roots = [f"ubd{letters[number]}" for number in range(hardware.layers)]
    arguments = [f"encamp.root={','.join(roots)}"]
    if hardware.has_disk:
        arguments.append(f"encamp.disk=ubd{letters[hardware.layers]}")
    if hardware.scratch:
        arguments.append(f"encamp.scratch={hardware.scratch // 1024}k")
    return Boot(find_kernel(), initramfs, (*arguments, *extra))


def launch(blueprint: Blueprint, origin: Boot) -> UserMode:
    directory, hardware = blueprint.directory, blueprint.hardware
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

        def inherit(path: Path, flags: int = os.O_RDONLY) -> int:
            fd = os.open(path, flags | os.O_CLOEXEC)
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
