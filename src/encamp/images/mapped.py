"""Becomes a root that is nobody on the host, then runs a program. A program, not a part of the
library.

    python mapped.py PLAN

The plan (JSON) has the first of a range of ids that nobody has, how many there are, directories
that must stay within reach, and the command. Its user namespace makes the range the users 0, 1,
2... of the program: what it may do, it may do only with files of that range.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18


def check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise SystemExit(f"encamp: {what}: {os.strerror(number)}")


def mount(source: str, target: Path, kind: str, flags: int, options: str = "") -> None:
    words = (source.encode(), os.fsencode(target), kind.encode())
    check(LIBC.mount(*words, ctypes.c_ulong(flags), options.encode()), f"mounting at {target}")


def closed_above(path: Path) -> Path | None:
    """The first directory on the way to a path that others cannot pass."""
    for above in reversed(path.parents):
        if not above.stat().st_mode & stat.S_IXOTH:
            return above
    return None


def keep_within_reach(paths: list[Path]) -> None:
    """Cover directories that are closed to others, and let only these paths show through."""
    below = [(path, closed_above(path)) for path in sorted(set(paths))]
    handles = {path: os.open(path, os.O_PATH) for path, closed in below if closed}
    for closed in {closed for _, closed in below if closed}:
        mount("tmpfs", closed, "tmpfs", MS_NOSUID | MS_NODEV, "mode=711,size=1m")
    for path, handle in handles.items():
        path.mkdir(mode=0o711, parents=True, exist_ok=True)
        mount(f"/proc/self/fd/{handle}", path, "", MS_BIND | MS_REC)
        os.close(handle)


def become_nobodys_root(first: int, count: int) -> None:
    """Enter a user namespace of the range; a child that stays outside says what it stands for."""
    ready, entered = os.pipe()
    ours = Path(f"/proc/{os.getpid()}")
    child = os.fork()
    if child == 0:
        os.close(entered)
        os.read(ready, 1)
        try:
            for file in ("uid_map", "gid_map"):
                (ours / file).write_text(f"0 {first} {count}\n")
        except OSError:
            os._exit(1)
        os._exit(0)
    os.close(ready)
    check(LIBC.unshare(CLONE_NEWUSER), "making a user namespace")
    os.close(entered)
    if os.waitpid(child, 0)[1] != 0:
        raise SystemExit(f"encamp: the ids from {first} cannot be used on this host")
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def main() -> None:
    plan = json.loads(sys.argv[1])
    os.umask(0o022)
    check(LIBC.unshare(CLONE_NEWNS), "making a mount namespace")
    mount("none", Path("/"), "", MS_REC | MS_PRIVATE)
    here = Path.cwd()
    keep_within_reach([here, *map(Path, plan["reach"])])
    os.chdir(here)
    become_nobodys_root(plan["first"], plan["count"])
    os.execvp(plan["command"][0], plan["command"])


if __name__ == "__main__":
    main()
