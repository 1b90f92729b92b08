"""What Encamp brings along for a batch system, and where it is put."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from encamp.batch.install.changes import Change, Directory, File, Installed, digest
from encamp.batch.install.lines import Look
from encamp.describe.batch_file import BATCH, read_batch_settings
from encamp.describe.places import ENVIRONMENTS, shipped_environments
from encamp.describe.sources import Level, Source
from encamp.model.batch import BatchSettings
from encamp.model.errors import Code, EncampError

PREFIX = "/usr/lib/encamp"
STARTER = "encamp-starter"

INSTALL = "It comes with Encamp: 'make' in a checkout compiles it, or install Encamp again."

LONGEST_PATH = 54
"""Characters of the starter's path, so that the first line of a script has room for it and for the
longest name of an environment."""
SHORTEST_NAME = 16
"""Letters of an environment's name for which there must be room beside it."""
LONGEST_NAME = 64


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What to set up."""

    system: str
    prefix: str = PREFIX
    """Where programs go that are the same on every host."""
    configuration: str
    """The directory of batch.yaml."""
    programs: dict[str, str] = {}
    """For a batch.yaml that is made here: where the batch system's own things are."""
    node: bool = False
    """Only what a host needs that runs jobs?"""
    nodes: tuple[str, ...] = ()
    """Environments whose machines are worker nodes of the batch system."""
    other_nodes: tuple[str, ...] = ()
    """Environments whose machines are worker nodes of another one."""

    @property
    def starter(self) -> str:
        return f"{self.prefix}/{STARTER}"

    @property
    def descriptions(self) -> tuple[str, ...]:
        """The files that describe the site's environments. What is read from them when a job is
        submitted tells which names are known."""
        return (shipped_environments().path, f"{self.configuration}/{ENVIRONMENTS}")


def check_prefix(prefix: str) -> None:
    """The starter's path stands in first lines of scripts and in configurations of batch systems,
    which have no way to quote it."""
    place = f"{prefix}/{STARTER}"
    if not re.fullmatch(r"/[A-Za-z0-9._+@/-]*", prefix):
        raise EncampError(
            Code.USAGE,
            f"The starter cannot be at '{place}': batch systems would not find it there.",
            "Use letters, digits, '.', '_', '-', '+' and '@' only in --prefix.",
        )
    if len(place) > LONGEST_PATH + LONGEST_NAME - SHORTEST_NAME:
        raise EncampError(
            Code.USAGE,
            f"The starter cannot be at '{place}': the first line of a script would be too long.",
            f"A --prefix of {LONGEST_PATH - len(STARTER) - 1} letters has room for every name of an"
            " environment.",
        )


def shipped(name: str, hint: str = INSTALL) -> bytes:
    """A file of Encamp's own that is copied; `hint`: what to do if it is missing."""
    path = Path(__file__).parent.parent / name
    try:
        return path.read_bytes()
    except OSError as error:
        raise EncampError(
            Code.PROGRAM_MISSING,
            f"{path} is missing: {error.strerror}.",
            hint,
        ) from error


def settings_of(wanted: Wanted, look: Look) -> tuple[BatchSettings, File | None]:
    """What batch.yaml says; and the file, if there is none yet."""
    path = f"{wanted.configuration}/{BATCH}"
    data = look(path)
    made = None
    if data is None:
        data = first_settings(wanted)
        made = File(path=path, after=data, begun=True)
    source = Source(path, Level.SITE, 0, wanted.configuration, path)
    settings = read_batch_settings(source, data)
    if settings.system != wanted.system:
        raise EncampError(
            Code.CONFIGURATION,
            f"{path} is for '{settings.system}', not for '{wanted.system}'.",
            "A host works with one batch system: change the file, or take it away.",
        )
    return settings, made


FIRST_DESCRIPTIONS = b"""\
# The environments of this site, the same file on every host. 'encamp env show mini' shows how one
# is described, 'encamp env schema' all that can be said, and 'encamp env check' reads this file.
# A job that names one which is neither described here nor shipped ('encamp env ls') is refused when
# it is submitted. Without this file, the host that the job comes to finds that out.
"""


def first_descriptions(wanted: Wanted, settings: BatchSettings, look: Look) -> list[File]:
    """The file that makes known which environments there are, where nothing else does."""
    path = wanted.descriptions[-1]
    if settings.environments or look(path) is not None:
        return []
    return [File(path=path, after=FIRST_DESCRIPTIONS, begun=True)]


def same_descriptions(wanted: Wanted) -> str:
    return (
        f"{wanted.descriptions[-1]} has to be the same on every host: jobs that name an environment"
        " which it does not describe, and which is not shipped, are refused when they are"
        " submitted."
    )


def first_settings(wanted: Wanted) -> bytes:
    lines = [
        "# How the hosts of this site work with their batch system; the same file on each of them.",
        "# 'encamp batch check' reads it.",
        f"system: {wanted.system}",
    ]
    if wanted.programs:
        lines += ["programs:", *(f"  {name}: {path}" for name, path in wanted.programs.items())]
    lines += [
        "# Directories that jobs find in their machines as they are on the host:",
        "# shares: [/home, /scratch]",
        "# Environments that jobs may name, if not all that environments.yaml describes:",
        "# environments: [debian12]",
        "# Environments for jobs that name none; the first that fits decides:",
        "# rules:",
        "#   - { queue: long, environment: debian12 }",
        "",
    ]
    return "\n".join(lines).encode()


def directories(paths: list[str]) -> list[Directory]:
    """Those above these paths that are missing, the outer first."""
    missing: dict[str, None] = {}
    for path in paths:
        above = Path(path).parent
        found = []
        while not above.is_dir():
            found.append(str(above))
            above = above.parent
        missing.update(dict.fromkeys(reversed(found)))
    return [Directory(path=path) for path in missing]


def own_file(
    path: str, content: bytes, look: Look, *, mode: int = 0o644, watched: bool = False
) -> list[File]:
    """The change that puts a file of Encamp's own into place; none, if it is there."""
    if look(path) == content:
        return []
    return [File(path=path, after=content, mode=mode, watched=watched)]


def starters_of(former: Installed) -> list[str]:
    """Where an installation has put it."""
    files = [change.path for change in former.changes if isinstance(change, File)]
    return [path for path in files if Path(path).name == STARTER]


def is_ours(former: Installed | None, path: str, content: bytes) -> bool:
    """Was it an installation that put this there?"""
    changes: tuple[Change, ...] = former.changes if former else ()
    return any(
        isinstance(change, File) and change.path == path and digest(content) in change.ours
        for change in changes
    )
