"""Packages installed into a tree, and commands run in it, by `contained.py`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from encamp import programs
from encamp.images import contained, namespace, tree
from encamp.images.build_log import opened_log
from encamp.images.portion import Portion
from encamp.images.steps import Tree
from encamp.images.tidy import tidied
from encamp.model.errors import Code, EncampError
from encamp.model.recipe import EPOCH
from encamp.workplace import Workplace, remove_tree, write_private

SILENCE = 900.0
"""Seconds without a word after which a step is taken to hang."""

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "TERM": "dumb",
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBCONF_NONINTERACTIVE_SEEN": "true",
    # Programs that write down times, as compilers of Python do, take this one.
    "SOURCE_DATE_EPOCH": str(EPOCH),
    # Compiled Python depends on the order in which sets are gone through.
    "PYTHONHASHSEED": "0",
}
PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy")


class Action(msgspec.Struct, frozen=True):
    """One thing done to a tree."""

    title: str
    command: tuple[str, ...]
    inside: bool = True
    """Whether the tree is all that the command sees; apt works on it from beside it."""
    archive: str | None = None
    """Where to pack the tree afterwards, in its room."""
    environment: dict[str, str] = {}


def variables() -> dict[str, str]:
    """What commands find in their environment; of the host's own only how to reach the network."""
    proxies = {
        name: os.environ[name]
        for word in PROXIES
        for name in (word, word.upper())
        if name in os.environ
    }
    return {**proxies, **ENVIRONMENT}


@dataclass(frozen=True)
class Room:
    """Where one tree is unpacked and worked on; whoever works on it sees nothing else of ours."""

    directory: Path

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def archive(self) -> Path:
        return self.directory / "after.tar"


def perform(
    begin: Tree,
    actions: Sequence[Action],
    work: Workplace,
    room: Room,
    progress: Portion,
    *reach: Path,
) -> list[tree.Entries]:
    """Do one thing after another; the tree after each that asked for it."""
    plan = room.directory / "plan.json"
    # There may be passwords of proxies in it.
    write_private(
        plan,
        json.dumps(
            {
                "root": str(room.root),
                "environment": variables(),
                "steps": [msgspec.to_builtins(action) for action in actions],
            }
        ),
    )
    namespace.hand_over(plan)
    started = time.time()
    titles = [action.title for action in actions]
    reached = [0]

    def read(line: str) -> None:
        title = line.rstrip().removeprefix("encamp: ")
        if line.startswith("encamp: ") and title in titles:
            reached[0] = titles.index(title)
        progress.update(titles[reached[0]], (reached[0] + 0.3) / len(titles))

    try:
        with begin.archive.open("rb") as archive, opened_log(work) as log:
            programs.run(
                namespace.within([sys.executable, "-I", contained.__file__, plan], *reach),
                purpose=titles[0],
                directory=room.directory,
                reads=archive,
                hold=(work.lock,),
                silence=SILENCE,
                on_line=read,
                log=log,
            )
        made = [
            tidied(tree.read(namespace.take_back(Path(action.archive)), now=started))
            for action in actions
            if action.archive
        ]
    except EncampError as error:
        if error.code is not Code.BUILD_FAILED:
            raise
        failed = actions[reached[0]]
        raise EncampError(
            Code.BUILD_FAILED,
            f"'{failed.title}' failed.",
            detail=error.detail,
        ) from error
    finally:
        remove_tree(room.root)
        plan.unlink(missing_ok=True)
    progress.update(titles[-1], 1.0)
    return made
