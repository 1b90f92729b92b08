"""A host of the tests' own with a batch system's files on it, and how it looked before."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest

from encamp.batch.install import recording
from encamp.batch.install.changes import Change, Installed, Kept, Plan
from encamp.batch.install.planning import Asked, plan


class Entry(msgspec.Struct, frozen=True):
    """All that matters of a file or directory."""

    mode: int
    owner: tuple[int, int]
    content: bytes | None


def snapshot(*roots: Path) -> dict[str, Entry]:
    """Every file below some directories."""
    found: dict[str, Entry] = {}
    for root in roots:
        for path in [root, *sorted(root.rglob("*"))]:
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
            if stat.S_ISLNK(status.st_mode):
                content = os.fsencode(path.readlink())
            found[str(path)] = Entry(status.st_mode, (status.st_uid, status.st_gid), content)
    return found


def nothing_told(change: Change) -> None: ...


class Host:
    """Where Slurm's files, Encamp's settings and its programs are."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.slurm = directory / "slurm"
        self.site = directory / "etc"
        self.prefix = directory / "lib" / "encamp"
        self.slurm.mkdir()
        self.site.mkdir()

    @property
    def conf(self) -> Path:
        return self.slurm / "slurm.conf"

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.slurm / name
        path.write_text(dedent(text))
        path.chmod(mode)
        return path

    def snapshot(self) -> dict[str, Entry]:
        return snapshot(self.directory)

    def plan(self, system: str = "slurm", *, spank: bool = False, node: bool = False) -> Plan:
        return plan(
            Asked(
                system=system,
                conf=str(self.conf),
                prefix=str(self.prefix),
                spank=spank,
                node=node,
            )
        )

    def install(self, system: str = "slurm", *, spank: bool = False) -> Plan:
        made = self.plan(system, spank=spank)
        recording.install(made, nothing_told)
        return made

    def recorded(self, system: str = "slurm") -> Installed:
        found = recording.installed(system)
        assert found is not None
        return found

    def uninstall(self, system: str = "slurm", *, forget: bool = False) -> list[Kept]:
        return recording.uninstall(self.recorded(system), nothing_told, forget=forget)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(made.site))
    monkeypatch.setenv("ENCAMP_USER_CONFIG", str(made.site))
    for name in list(os.environ):
        if name.startswith(("SLURM_", "SGE_")):
            monkeypatch.delenv(name)
    return made
