"""Rooms of their own for programs that change root trees.

A program in one sees only its own processes and mounts, and all it started ends with it. It is
root there, and nobody on the host: ordinary users lend it their subordinate ids, root lends it a
range that nobody has. So whatever a tree makes its root do, it does to the tree alone.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from encamp import programs
from encamp.home import user_name
from encamp.images import mapped
from encamp.model.errors import Code, EncampError

SEPARATE = ("--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child")
DIES_WITH_ITS_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")

FIRST, COUNT = 0x70000000, 1 << 16
"""Ids that stand for those of a tree that root builds: above all that are given out, to people,
to services, or to containers."""


def within(command: Sequence[str | Path], *reach: Path) -> list[str | Path]:
    """The command line that runs another one in a room of its own, begun where it works.

    What it reads lies below `reach`, or where everybody can go.
    """
    # Said twice: becoming root, as the second one has, makes the kernel forget the first.
    if os.geteuid() != 0:
        require_subordinate_ids()
        ids = ("--map-root-user", "--map-auto")
        return [
            *(*DIES_WITH_ITS_PARENT, "unshare", *ids, *SEPARATE),
            *(*DIES_WITH_ITS_PARENT, *command),
        ]
    require_range()
    inner = (*DIES_WITH_ITS_PARENT, "unshare", *SEPARATE, *DIES_WITH_ITS_PARENT, *command)
    ours = (Path(sys.prefix), Path(sys.base_prefix), Path(mapped.__file__).parent)
    plan = {
        "first": FIRST,
        "count": COUNT,
        "reach": [str(path.resolve()) for path in (*ours, *reach)],
        "command": [str(word) for word in inner],
    }
    return [*DIES_WITH_ITS_PARENT, sys.executable, "-I", mapped.__file__, json.dumps(plan)]


def make_room(directory: Path) -> Path:
    """A new directory for a program in a room of its own. Nobody else can enter it, so that no
    program of a tree, which may be its root's to run, can be run by others."""
    directory.mkdir(mode=0o700)
    hand_over(directory)
    return directory.resolve()


def hand_over(path: Path) -> None:
    """Let programs in rooms own a file or directory."""
    if os.geteuid() == 0:
        os.chown(path, FIRST, FIRST, follow_symlinks=False)


def lend(path: Path) -> None:
    """Let programs in rooms read a file that may have other names, which must not become theirs."""
    if os.geteuid() == 0 and not path.stat().st_mode & stat.S_IROTH:
        copy = path.with_name(f"{path.name}.lent")
        shutil.copyfile(path, copy)
        copy.chmod(0o600)
        hand_over(copy)
        copy.replace(path)


def take_back(path: Path) -> Path:
    """A file that a program in a room made, as one of ours; a link or anything else is none."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise EncampError(Code.BUILD_FAILED, f"{path} is no file any more.")
    if os.geteuid() == 0:
        os.chown(path, 0, 0, follow_symlinks=False)
    return path


def require_range() -> None:
    """In some containers, root has no ids to give away."""
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    rows = [tuple(map(int, line.split())) for line in lines]
    if not any(first <= FIRST and first + count >= FIRST + COUNT for first, _, count in rows):
        raise EncampError(
            Code.NOT_PERMITTED,
            f"Root has no ids from {FIRST} to {FIRST + COUNT - 1} here, so no packages can be "
            "installed and no commands run.",
            "Build the image outside of this container, or give it all ids.",
        )


def require_subordinate_ids() -> None:
    """Without root, the files of other users in an image need ids that stand for them."""
    programs.find("newuidmap")
    user = user_name(os.geteuid())
    for file in ("/etc/subuid", "/etc/subgid"):
        try:
            text = Path(file).read_text()
        except OSError:
            text = ""
        if not re.search(rf"^({re.escape(user)}|{os.geteuid()}):\d+:\d{{5,}}$", text, re.MULTILINE):
            raise EncampError(
                Code.NOT_PERMITTED,
                f"{file} gives user '{user}' no subordinate ids, so no packages can be installed "
                "and no commands run.",
                f"Ask root to add the line '{user}:100000:65536' to {file} (an unused range), or "
                "to build the image once: everybody on this host then uses that one.",
            )
