"""Runs commands on a root tree, in a room of their own. A program, not a part of the library.

    python contained.py PLAN < ARCHIVE
    python contained.py --enter ROOT MOUNTS COMMAND...

The plan (JSON) names a directory to unpack the archive to, and steps: each a command, run inside
the tree or beside it, and the archive to pack the tree into afterwards. The second form is for
what runs beside the tree: it enters the tree for one command.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 32, 4096, 16384
MNT_DETACH = 2
CLONE_NEWNS = 0x20000
PR_CAPBSET_DROP = 24

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
POLICY = "usr/sbin/policy-rc.d"
"""Asked before a package starts a service; 101 means that it must not."""
NO_SERVICES = "#!/bin/sh\nexit 101\n"

RESOLVER = "etc/resolv.conf"
PLAIN = (
    *("etc/apt", "etc/apt/preferences.d", "var/cache/apt", "var/lib/apt/lists"),
    *("var/lib/apt/extended_states", "var/lib/dpkg/status", "var/lib/dpkg/updates"),
)
"""Where those look that work on a tree from beside it."""

RIGHTS = frozenset((0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 29, 31))
"""What root may do in a tree: own and change any file, become other users, change its root; not
open files without a path, make devices, mount, load drivers or set the clock."""
LAST_RIGHT = 40

TAR = (
    *("tar", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--format=pax"),
    "--pax-option=delete=atime,delete=ctime",
)
HIDDEN = ("./dev/*", "./proc/*", "./sys/*")
"""Not the tree's own, but what is mounted there as long as we work on it."""


def system(name: str, *arguments: Any) -> None:
    if getattr(LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def mount(source: str, target: Path, kind: str = "", flags: int = 0, options: str = "") -> None:
    words = (source.encode(), str(target).encode(), kind.encode())
    system("mount", *words, ctypes.c_ulong(flags), options.encode())


def leads_astray(root: Path, path: str) -> bool:
    """Whether a link stands on the way: seen from beside the tree, it leads out of it."""
    way = root
    for part in Path(path).parts:
        way /= part
        if way.is_symlink():
            return True
    return False


def must_be_plain(root: Path, path: str) -> Path:
    if leads_astray(root, path):
        raise SystemExit(f"encamp: /{path} of this tree is reached through a symbolic link")
    return root / path


def unpack(root: Path) -> None:
    """Unpack the archive that is our input."""
    root.mkdir(mode=0o755)
    command = (*TAR, "--extract", "--same-owner", "--preserve-permissions", "--file=-")
    subprocess.run([*command, f"--directory={root}"], check=True)


def pack(root: Path, archive: str) -> None:
    hidden = (f"--exclude={pattern}" for pattern in HIDDEN)
    command = (*TAR, "--create", "--sort=name", "--one-file-system", *hidden, f"--file={archive}")
    subprocess.run([*command, f"--directory={root}", "."], check=True)


def furnish(root: Path) -> None:
    """Give the tree the devices that every program expects, and its own processes to see."""
    for name in ("dev", "proc"):
        must_be_plain(root, name).mkdir(exist_ok=True)
    # A host that hides parts of its own /proc allows no new one.
    with contextlib.suppress(OSError):
        mount("proc", root / "proc", "proc")
    dev = root / "dev"
    mount("tmpfs", dev, "tmpfs", MS_NOSUID, "mode=755,size=1m")
    for name in DEVICES:
        if Path(f"/dev/{name}").exists():
            (dev / name).touch()
            mount(f"/dev/{name}", dev / name, flags=MS_BIND)
    for name, target in LINKS.items():
        (dev / name).symlink_to(target)
    for name, kind, options in (
        ("pts", "devpts", "newinstance,ptmxmode=666"),
        ("shm", "tmpfs", "mode=1777"),
    ):
        (dev / name).mkdir()
        with contextlib.suppress(OSError):
            mount(kind, dev / name, kind, MS_NOSUID, options)


@contextlib.contextmanager
def meanwhile(root: Path, path: str, content: str = "", mode: int = 0o644) -> Any:
    """A file that is there as long as a command runs, unless the tree has one.

    It is removed from the very directory it was put into: meanwhile a path may lead elsewhere.
    """
    target = root / path
    if leads_astray(root, path) or target.exists() or not target.parent.is_dir():
        yield
        return
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        target.write_text(content)
        target.chmod(mode)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(target.name, dir_fd=directory)
        os.close(directory)


def show_names_of_hosts(root: Path) -> None:
    """Commands find servers by name as the host does; how is no part of the tree."""
    target, ours = root / RESOLVER, Path("/etc/resolv.conf")
    if not leads_astray(root, RESOLVER) and target.is_file() and ours.exists():
        mount(str(ours.resolve()), target, flags=MS_BIND)


def show(root: Path, mounts: dict[str, str]) -> None:
    """Directories of the host, to be read only."""
    for place, source in mounts.items():
        target = must_be_plain(root, place)
        target.mkdir(parents=True, exist_ok=True)
        mount(source, target, flags=MS_BIND)
        kept = os.statvfs(target).f_flag & (MS_NOSUID | MS_NODEV | 8)
        mount("none", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY | kept)


def renounce() -> None:
    """Give up, for good, the rights that no command on a tree needs."""
    for right in set(range(LAST_RIGHT + 1)) - RIGHTS:
        LIBC.prctl(PR_CAPBSET_DROP, right, 0, 0, 0)


def enter(root: Path, mounts: dict[str, str]) -> None:
    """Make the tree all there is: nothing leads back to the host's files. What is mounted for
    that is seen, and ends, with this process."""
    system("unshare", CLONE_NEWNS)
    show_names_of_hosts(root)
    show(root, mounts)
    mount(str(root), root, flags=MS_BIND | MS_REC)
    os.chdir(root)
    system("pivot_root", b".", b".")
    system("umount2", b".", MNT_DETACH)
    os.chdir("/")
    renounce()


def run(step: dict[str, Any], root: Path, environment: dict[str, str]) -> int:
    if not step["inside"]:
        for path in PLAIN:
            must_be_plain(root, path)
    with meanwhile(root, POLICY, NO_SERVICES, 0o755), meanwhile(root, RESOLVER):
        process = subprocess.Popen(
            step["command"],
            stdin=subprocess.DEVNULL,
            env={**environment, **step["environment"]},
            preexec_fn=(lambda: enter(root, {})) if step["inside"] else None,
        )
        status = process.wait()
        end_all_others()
    return status


def end_all_others() -> None:
    """A tree is packed when nothing changes it any more."""
    if os.getpid() != 1:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def end(*_: object) -> None:
    sys.exit(143)


def enter_for_one_command(root: str, mounts: str, *command: str) -> None:
    shown = json.loads(mounts)
    # Told of files by their path beside the tree.
    places = {**{source: f"/{place}" for place, source in shown.items()}, root: ""}
    inside = list(command)
    for source, place in places.items():
        inside = [
            place + word.removeprefix(source) if word.startswith(f"{source}/") else word
            for word in inside
        ]
    enter(Path(root), shown)
    os.execv(inside[0], inside)


def main() -> int:
    if sys.argv[1] == "--enter":
        enter_for_one_command(*sys.argv[2:])
    signal.signal(signal.SIGTERM, end)
    plan = json.loads(Path(sys.argv[1]).read_text())
    root = Path(plan["root"])
    os.umask(0o022)
    # Some packages write it down.
    with contextlib.suppress(OSError):
        socket.sethostname("encamp")
    unpack(root)
    furnish(root)
    for step in plan["steps"]:
        sys.stdout.write(f"encamp: {step['title']}\n")
        sys.stdout.flush()
        status = run(step, root, plan["environment"])
        if status != 0:
            return status if 0 < status < 128 else 1
        if step["archive"]:
            pack(root, step["archive"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
