"""Thin volumes of LVM: made, copied in an instant, found again by their names, removed.

A volume that belongs to something on disk (a machine, a template) is noted in that thing's
directory before it is made. So whoever clears the directory, even after a crash, knows what else
to clear. Depends on next to nothing, so that it can be tested where there is only Python.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from encamp import programs
from encamp.model.errors import Code, EncampError
from encamp.workplace import OUTSIDE

NOTE = "volume"
"""The file, in the directory of what a volume belongs to, that names it."""

TAG = "encamp"
"""All our volumes carry it: 'lvs @encamp' lists them."""

NAME = re.compile(r"encamp-[0-9a-f]{8}-[0-9a-f]{32}")
GROUP = re.compile(r"[A-Za-z0-9+_.][A-Za-z0-9+_.-]*")
SECTOR = 512

REPORT = ("--reportformat", "json", "--units", "b", "--nosuffix")
FIELDS = "lv_name,lv_size,segtype,data_percent,pool_lv,lv_active"


@dataclass(frozen=True)
class Volume:
    """One line of LVM's own report."""

    name: str
    size: int
    kind: str
    """LVM's word for what it is made of: 'thin', 'thin-pool', ..."""
    used: float
    """Percent of it that holds data."""
    pool: str
    active: bool


class ThinPool:
    """The thin pool of a volume group, and those of its volumes that are of one home."""

    def __init__(self, group: str, pool: str, home: str) -> None:
        self.group = group
        self.pool = pool
        self.home = home
        """Eight hexadecimal digits: several homes may use one pool."""

    # ── looking ──────────────────────────────────────────────────────────────────────────────────

    def name(self, owner: str) -> str:
        """What the volume of a machine (by its id) or of a template (by its key) is called."""
        return f"encamp-{self.home}-{owner}"

    def free(self, found: list[Volume]) -> int:
        """Bytes of the pool that nobody has written to yet."""
        for volume in found:
            if volume.name == self.pool and volume.kind == "thin-pool":
                return int(volume.size * (100 - volume.used) / 100)
        raise EncampError(
            Code.CONFIGURATION,
            f"The volume group '{self.group}' has no thin pool '{self.pool}'.",
            f"Make one: lvcreate --type thin-pool --size SIZE --name {self.pool} {self.group}",
        )

    def owners(self, found: list[Volume]) -> list[str]:
        """Whose volumes of this home are among those found."""
        prefix = self.name("")
        return [
            volume.name.removeprefix(prefix)
            for volume in found
            if volume.name.startswith(prefix) and NAME.fullmatch(volume.name)
        ]

    # ── making ───────────────────────────────────────────────────────────────────────────────────

    def create(self, name: str, size: int) -> None:
        """An empty volume: it takes room only as it is written to."""
        # LVM has no smaller unit, and rounds up to its own by itself.
        size = -(-size // SECTOR) * SECTOR
        _run(
            *("lvcreate", "--quiet", "--type", "thin", "--virtualsize", f"{size}b"),
            *("--thinpool", self.pool, "--name", name, "--addtag", TAG, "--wipesignatures", "n"),
            self.group,
            purpose="making a volume for the machine's disk",
        )

    def snapshot(self, origin: str, name: str) -> None:
        """A volume that begins as what the origin holds, and shares its blocks until written."""
        _run(
            *("lvcreate", "--quiet", "--type", "thin", "--name", name, "--addtag", TAG),
            *("--setactivationskip", "n", "--permission", "rw", f"{self.group}/{origin}"),
            purpose="copying the template's volume",
        )

    def freeze(self, name: str) -> None:
        """Let nothing write to the volume any more."""
        _run(
            *("lvchange", "--quiet", "--activate", "n", f"{self.group}/{name}"),
            purpose="deactivating the template's volume",
        )
        _run(
            *("lvchange", "--quiet", "--permission", "r", f"{self.group}/{name}"),
            purpose="protecting the template's volume",
        )

    # ── removing ─────────────────────────────────────────────────────────────────────────────────

    def discard(self, owner: str) -> None:
        remove(self.group, self.name(owner))


def volumes(group: str) -> list[Volume]:
    """What is in a volume group."""
    command = ("lvs", *REPORT, "--options", FIELDS, group)
    try:
        printed = _run(*command, purpose=f"looking at the volume group '{group}'")
    except EncampError as error:
        if error.code is Code.PROGRAM_MISSING:
            raise
        raise EncampError(
            Code.CONFIGURATION,
            f"There is no volume group '{group}' that can be used.",
            "'vgs' lists those of this host; 'volume_group' in settings.yaml names the one to use.",
            detail=error.detail,
        ) from error
    # LVM may warn before it reports.
    report = json.loads(printed[printed.index("{") :])["report"][0]["lv"]
    return [
        Volume(
            name=line["lv_name"],
            size=int(line["lv_size"]),
            kind=line["segtype"],
            used=float(line["data_percent"] or 0),
            pool=line["pool_lv"],
            active=line["lv_active"] == "active",
        )
        for line in report
    ]


def device(group: str, name: str) -> Path:
    return Path("/dev") / group / name


def activate(group: str, name: str) -> None:
    """Make the volume's device appear; after a restart of the host it may not be there."""
    if not device(group, name).exists():
        _run(
            *("lvchange", "--quiet", "--activate", "y", "--ignoreactivationskip"),
            f"{group}/{name}",
            purpose="activating the machine's volume",
        )


def remove(group: str, name: str) -> None:
    """Remove a volume, unless it is gone already."""
    assert NAME.fullmatch(name), f"{name} is not a volume of ours"
    try:
        _run(
            *("lvremove", "--quiet", "--yes", "--force", f"{group}/{name}"),
            purpose="removing the machine's volume",
            cleaning=True,
        )
    except EncampError:
        if any(volume.name == name for volume in volumes(group)):
            raise


# ── notes ────────────────────────────────────────────────────────────────────────────────────────


def note(directory: Path, group: str, name: str) -> None:
    """Write down that this volume goes when the directory goes."""
    (directory / NOTE).write_text(f"{group}/{name}")


def noted(directory: Path) -> tuple[str, str] | None:
    """The group and name of the volume that belongs to what is in the directory."""
    try:
        text = (directory / NOTE).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    group, _, name = text.partition("/")
    # One that was cut short names a volume that was never made.
    return (group, name) if GROUP.fullmatch(group) and NAME.fullmatch(name) else None


def release(directory: Path) -> bool:
    """Remove the volume that a directory notes; False if there still is one.

    Costs one look at the directory where there is none."""
    volume = noted(directory)
    if volume is not None:
        try:
            remove(*volume)
        except EncampError:
            return False
    forget(directory)
    return True


@contextmanager
def released(work: Path, *names: str) -> Iterator[None]:
    """Whatever happens here, afterwards none of these directories of a workplace has a volume. If
    one cannot be removed, or we are killed, the workplace stays until it can."""
    outside = work / OUTSIDE
    outside.touch()
    try:
        yield
    finally:
        gone = [release(work / name) for name in names]
        if all(gone):
            outside.unlink()


def forget(directory: Path) -> None:
    """From now on the directory has no volume, or another has it."""
    (directory / NOTE).unlink(missing_ok=True)


def _run(*command: str, purpose: str, cleaning: bool = False) -> str:
    variables = {**os.environ, "LC_ALL": "C", "LVM_SUPPRESS_FD_WARNINGS": "1"}
    return programs.run(
        command, purpose=purpose, code=Code.DISK_FULL, environment=variables, cleaning=cleaning
    )
