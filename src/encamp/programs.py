"""The one way to run other programs: found by name, missing ones reported with their package."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, AnyStr, BinaryIO, TextIO, cast

from encamp.model.errors import Code, EncampError

PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mksquashfs": "squashfs-tools",
    "sqfs2tar": "squashfs-tools-ng",
    "tar2sqfs": "squashfs-tools-ng",
    "zstd": "zstd",
    "skopeo": "skopeo",
    "mmdebstrap": "mmdebstrap",
    "mkfs.ext4": "e2fsprogs",
    "lvs": "lvm2",
    "lvcreate": "lvm2",
    "lvchange": "lvm2",
    "lvremove": "lvm2",
    "dpkg-deb": "dpkg",
    "apt-get": "apt",
    "apt-cache": "apt",
    "apt-config": "apt",
    "newuidmap": "uidmap",
    "minisign": "minisign",
    "openssl": "openssl",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "prlimit": "util-linux",
    "qconf": "gridengine-client",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "sacctmgr": "slurm-client",
    "munged": "munge",
    "nsenter": "util-linux",
    "nats-server": "nats-server",
    "sinfo": "slurm-client",
    "scontrol": "slurm-client",
    "squeue": "slurm-client",
    "pbsnodes": "slurm-wlm-torque",
}
"""Debian's package for each program Encamp calls."""

ADMINISTRATOR_PATHS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where Debian keeps programs that an ordinary user's PATH leaves out."""

LAST_LINES = 12
LONGEST_LINE = 16 << 10
"""Characters; what goes on for longer without a new line comes in pieces."""
MOST_OUTPUT = 256 << 20
"""Characters of output that are kept for a caller. No program says so much in earnest."""
MOST_LOGGED = 64 << 20
"""Characters of one program's output that are written to a log."""

ORPHANS_LAST = 2.0
"""Seconds in which a killed program's children are gone, unless nobody on this host reaps them."""


class Program(subprocess.Popen[AnyStr]):
    """A program that was started; one whose start is interrupted does not stay behind."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        self.returncode: int | Any = None
        self.pid = 0
        try:
            super().__init__(command, start_new_session=True, **options)
        except BaseException:
            if self.pid and self.returncode is None:
                end_group(self)
            raise


RUNNING: set[Program[str] | Program[bytes]] = set()
STOPPING = threading.Event()
"""Set when this process was told to stop: nothing new is started, waiting ends."""


def find(program: str) -> Path:
    """The program's full path; an error naming the package to install when it is not there."""
    search = os.pathsep.join([os.environ.get("PATH", os.defpath), *ADMINISTRATOR_PATHS])
    found = shutil.which(program, path=search)
    if found is None:
        package = PACKAGES.get(program, program)
        raise EncampError(
            Code.PROGRAM_MISSING,
            f"The program '{program}' is not installed.",
            f"Install it with: apt-get install {package}"
            if os.sep not in program
            else "Nothing that can be run has that path.",
        )
    return Path(found)


def run(
    command: Sequence[str | Path],
    *,
    purpose: str,
    code: Code = Code.BUILD_FAILED,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    reads: BinaryIO | None = None,
    hold: Sequence[int] = (),
    on_line: Callable[[str], None] | None = None,
    log: TextIO | None = None,
    silence: float | None = None,
    cleaning: bool = False,
) -> str:
    """Run a program to its end and return what it printed.

    `on_line` sees each line of its output (both streams) as it comes; then none of it is kept and
    returned, however much it is. `log` gets each line as well, up to `MOST_LOGGED` characters.
    `reads` becomes its input.
    `hold` are descriptors it keeps open, so that a lock lasts as long as anything it started.
    A failure becomes an `EncampError` that says what the program was for and quotes its last
    lines. The program and all it started end with this call, also when the call itself is
    interrupted. A program that prints nothing for `silence` seconds is taken to hang and ended.
    `cleaning` programs are run even by a process that was told to stop.
    """
    if not cleaning:
        refuse_when_stopping()
    argv = argument_list(command)
    last: deque[str] = deque(maxlen=LAST_LINES)
    everything: list[str] = []
    kept = logged = 0
    process: Program[str] = Program(
        argv,
        stdin=subprocess.DEVNULL if reads is None else reads,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=tuple(hold),
        env=None if environment is None else dict(environment),
        cwd=directory,
        text=True,
        errors="replace",
    )
    if not cleaning:
        RUNNING.add(process)
    ended = threading.Event()
    heard = [time.monotonic()]
    if silence is not None:
        threading.Thread(
            target=end_when_silent, args=(process, silence, heard, ended), daemon=True
        ).start()
    try:
        assert process.stdout is not None
        while line := process.stdout.readline(LONGEST_LINE):
            heard[0] = time.monotonic()
            last.append(line.rstrip())
            if log is not None and logged < MOST_LOGGED:
                logged += log.write(line)
            if on_line is not None:
                on_line(line.rstrip())
                continue
            everything.append(line)
            kept += len(line)
            if kept > MOST_OUTPUT:
                raise failure(command, 0, "\n".join(last), f"{purpose}: it says too much", code)
        status = process.wait()
    except BaseException:
        end_group(process)
        raise
    finally:
        ended.set()
        RUNNING.discard(process)
        if process.stdout is not None:
            process.stdout.close()
    if not cleaning:
        refuse_when_stopping()
    if status != 0:
        said = "\n".join(last)
        if silence is not None and time.monotonic() - heard[0] >= silence:
            said += f"\n(nothing for {silence:.0f} seconds, then ended)"
        raise failure(command, status, said, purpose, code)
    return "".join(everything)


def argument_list(command: Sequence[str | Path]) -> list[str]:
    """The full command line. The program is told to end should this process be killed."""
    program = [str(find(str(command[0]))), *map(str, command[1:])]
    return [str(find("setpriv")), "--pdeathsig", "TERM", "--", *program]


def end_when_silent(
    process: Program[str], silence: float, heard: list[float], ended: threading.Event
) -> None:
    while not ended.wait(min(1.0, silence / 4)):
        if time.monotonic() - heard[0] >= silence:
            end_group(process)
            return


@contextmanager
def stream(
    command: Sequence[str | Path],
    *,
    purpose: str,
    code: Code = Code.BUILD_FAILED,
    hold: Sequence[int] = (),
) -> Iterator[BinaryIO]:
    """Run a program and read the bytes it prints as it prints them; otherwise like `run`.

    Leaving early ends the program, and is no failure.
    """
    refuse_when_stopping()
    argv = argument_list(command)
    with tempfile.TemporaryFile() as complaints:
        process: Program[bytes] = Program(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            pass_fds=tuple(hold),
        )
        RUNNING.add(process)
        try:
            assert process.stdout is not None
            yield cast(BinaryIO, process.stdout)
            if process.stdout.read(1):
                end_group(process)
            elif process.wait() != 0:
                raise EOFError
        except Exception as error:
            # What ended early was misread too; what the program says about it is the cause.
            ended_itself = process.poll() not in (None, 0)
            end_group(process)
            refuse_when_stopping()
            if not ended_itself:
                raise
            complaints.seek(0)
            said = complaints.read().decode(errors="replace").splitlines()[-LAST_LINES:]
            raise failure(command, process.returncode, "\n".join(said), purpose, code) from error
        except BaseException:
            end_group(process)
            raise
        finally:
            RUNNING.discard(process)
            if process.stdout is not None:
                process.stdout.close()


def stop_all() -> None:
    """End every program started here and start no more; what waits for them is interrupted.

    For a process that was told to stop while its threads run programs.
    """
    STOPPING.set()
    for process in tuple(RUNNING):
        end_group(process)


def refuse_when_stopping() -> None:
    if STOPPING.is_set():
        raise KeyboardInterrupt


def failure(
    command: Sequence[str | Path], status: int, said: str, purpose: str, code: Code
) -> EncampError:
    if "No space left on device" in said:
        return EncampError(
            Code.DISK_FULL,
            f"The disk filled up while {purpose}.",
            "Make room and try again; nothing was left half done.",
            detail=said,
        )
    return EncampError(
        code, f"'{command[0]}' failed (exit code {status}) while {purpose}.", detail=said
    )


def end_group(process: Program[str] | Program[bytes]) -> None:
    """End a program and everything it started: politely, then not; and see them gone."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    for number in (signal.SIGTERM, signal.SIGKILL):
        if number in blocked:
            continue  # It has that from us, and would not hear it.
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
    patience = time.monotonic() + ORPHANS_LAST
    while group_exists(process.pid) and time.monotonic() < patience:
        time.sleep(0.005)


def group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
