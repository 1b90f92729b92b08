"""Packages added to a tree by an apt that works on it from beside it, as on a directory.

The host's apt fetches, the way the host reaches Debian's archive; one in the room resolves and
installs; dpkg and the packages' own scripts run in the tree and see nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from encamp.images import contained, namespace
from encamp.images.apt import RULES, Apt, acquire_settings, passwords
from encamp.images.session import Action, Room
from encamp.images.steps import share
from encamp.model.errors import Code, EncampError
from encamp.workplace import write_private

DEBS_LIMIT = 1 << 30
"""Bytes of fetched packages that are kept; those used longest ago go first."""
ARCHIVES = "var/cache/apt/archives"
"""Where dpkg finds, in the tree, what was fetched."""

UNKNOWN = re.compile(
    r"^E: (?:Unable to locate package |(?:Version|Release) '.*' for '|Package '(?=.* has no ))"
    r"([^\s']+)",
    re.MULTILINE,
)
"""What apt says of a package that none of its sources has, or not in the version asked for."""


class Shelf:
    """The lists and packages one build uses, which nobody else changes under it."""

    def __init__(self, apt: Apt, directory: Path) -> None:
        """Take what the private apt has. Call with the lock on packages held."""
        self.apt = apt
        self.directory = namespace.make_room(directory)
        self.lists = self.directory / "lists"
        self.debs = self.directory / "debs"
        for place in (self.lists, self.debs):
            for path in (place, place / "partial"):
                path.mkdir()
                namespace.hand_over(path)
        self.state = apt.state()
        self.sources = self.write("sources.list", apt.source_lines())
        self.netrc = self.write("auth.conf", passwords())
        for path in apt.lists.iterdir():
            if path.is_file() and path.name != "lock":
                share(path, self.lists / path.name)
                namespace.lend(self.lists / path.name)
        for path in apt.archives.glob("*.deb"):
            share(path, self.debs / path.name)
            namespace.lend(self.debs / path.name)

    def write(self, name: str, text: str) -> Path:
        """A file that only programs in rooms read: there may be passwords in it."""
        path = self.directory / name
        write_private(path, text)
        namespace.hand_over(path)
        return path

    def settings(self) -> list[str]:
        """How to reach a mirror from a room, where the host's own files cannot be read."""
        return acquire_settings(self.netrc, Path("/dev/null"))

    def fetch(self, status: str, packages: Sequence[str]) -> list[str]:
        """Fetch what a tree will need, from where only the host's apt can; the names that no
        archive has."""
        path = self.directory / "status"
        write_private(path, status)
        # What else is wrong is told when it is to be installed.
        try:
            self.apt.fetch(packages, path, self.lists, self.debs)
        except EncampError as error:
            if error.code is not Code.BUILD_FAILED:
                raise
            if unknown := UNKNOWN.findall(error.detail):
                return unknown
        for deb in self.debs.glob("*.deb"):
            namespace.lend(deb)
        (self.debs / "lock").unlink(missing_ok=True)
        for path in (self.lists / "auxfiles", self.lists / "partial", self.debs / "partial"):
            if path.is_dir():
                namespace.hand_over(path)
        return []

    def install(self, packages: Sequence[str], room: Room) -> list[Action]:
        """One after another: so a list that was added to gives what it gives from the start."""
        log = self.directory / "log"
        if not log.exists():
            log.mkdir()
            namespace.hand_over(log)
        dpkg = room.directory / "dpkg"
        dpkg.write_text(self.dpkg(room.root))
        dpkg.chmod(0o755)
        configuration = self.write("install.conf", self.configuration(room.root, dpkg))
        return [
            Action(
                title=f"installing {package}",
                command=("apt-get", "--quiet", "--yes", "install", package),
                inside=False,
                archive=str(room.archive) if package == packages[-1] else None,
                environment={"APT_CONFIG": str(configuration)},
            )
            for package in packages
        ]

    def dpkg(self, root: Path) -> str:
        """The program that apt takes for dpkg: that of the tree, in the tree."""
        mounts = {ARCHIVES: str(self.debs)}
        enter = (sys.executable, "-I", contained.__file__, "--enter")
        words = (*enter, str(root), json.dumps(mounts), "/usr/bin/dpkg")
        return f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'

    def configuration(self, root: Path, dpkg: Path) -> str:
        lines = "\n".join(self.settings())
        return f"""\
#clear DPkg;
{lines}
{RULES}
APT::Install-Recommends "0";
APT::Keep-Downloaded-Packages "true";
Dir "{root}/";
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "{self.sources}";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "{self.lists}";
Dir::Cache::archives "{self.debs}";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "{self.directory}/sources.bin";
Dir::Log "{self.directory}/log";
Dir::Bin::dpkg "{dpkg}";
DPkg::Install::Recursive "0";
DPkg::Install::Recursive::Force "0";
DPkg::Install::Recursive::Minimum "1000000";
DPkg::Use-Pty "0";
DPkg::Options {{ "--force-unsafe-io"; "--force-confold"; }};
"""

    def put_back(self) -> None:
        """Keep what was fetched for the next build. Call with the lock on packages held."""
        for path in self.debs.glob("*.deb"):
            target = self.apt.archives / path.name
            with contextlib.suppress(OSError):
                if not stat.S_ISREG(path.lstat().st_mode):
                    continue
                if not target.exists():
                    share(namespace.take_back(path), target)
                os.utime(target)
        found = sorted(
            ((path.stat().st_mtime, path.stat().st_size, path))
            for path in self.apt.archives.glob("*.deb")
        )
        total = 0
        for _, size, path in reversed(found):
            total += size
            if total > DEBS_LIMIT:
                path.unlink(missing_ok=True)
