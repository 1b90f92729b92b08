"""Where Encamp keeps things on a host: one directory per user, private to that user.

`ENCAMP_HOME` names it. Without that it is /var/lib/encamp (or `ENCAMP_SYSTEM_HOME`) for root and
~/.local/share/encamp for everybody else.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec

from encamp.model.errors import Code, EncampError

SYSTEM_HOME = Path(os.environ.get("ENCAMP_SYSTEM_HOME") or "/var/lib/encamp")
"""Root's; its images serve everybody on the host."""

LOCK_POLL = 0.02
"""Seconds between two tries at a lock that somebody else holds."""


class Home(msgspec.Struct, frozen=True):
    """The layout of one home directory."""

    root: Path

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def templates(self) -> Path:
        return self.root / "templates"

    @property
    def machines(self) -> Path:
        return self.root / "machines"

    @property
    def cache(self) -> Path:
        """Downloads and half-done work; safe to remove whenever nothing is running."""
        return self.root / "cache"

    @property
    def unpacked_kernels(self) -> Path:
        """Kernels that machines booted, as they were booted."""
        return self.cache / "kernels" / "unpacked"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    @property
    def owners(self) -> Path:
        """Homes of those for whom root's agent makes machines, by their numbers."""
        return self.root / "owners"

    def prepare(self) -> Home:
        """Make the directories that are missing; refuse a home that belongs to somebody else."""
        try:
            if not self.root.is_dir():
                self.root.mkdir(mode=0o711, parents=True, exist_ok=True)
            self._check_owner()
            for directory in (
                self.images,
                self.templates,
                self.machines,
                self.cache,
                self.locks,
            ):
                if not directory.is_dir():
                    directory.mkdir(mode=0o711, exist_ok=True)
        except OSError as error:
            raise EncampError(
                Code.NOT_PERMITTED,
                f"Cannot make Encamp's directory {self.root}: {error.strerror}.",
                "Set ENCAMP_HOME to a directory you may write to.",
            ) from error
        return self

    def _check_owner(self) -> None:
        found = self.root.stat()
        if found.st_uid != os.geteuid():
            raise EncampError(
                Code.NOT_PERMITTED,
                f"Encamp's directory {self.root} belongs to {user_name(found.st_uid)}, not to you.",
                "Set ENCAMP_HOME to a directory of your own, or unset it.",
            )
        if found.st_mode & stat.S_IWOTH:
            raise EncampError(
                Code.NOT_PERMITTED,
                f"Encamp's directory {self.root} can be written to by everybody.",
                f"Make it yours alone (chmod o-w {self.root}), or set ENCAMP_HOME to another.",
            )

    @contextmanager
    def lock(self, name: str, *, shared: bool = False) -> Iterator[None]:
        """Hold one of the home's locks. The kernel lets go of it if the process dies."""
        fd = os.open(self.locks / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @asynccontextmanager
    async def wait_for(self, name: str) -> AsyncIterator[None]:
        """Hold a lock that others may hold for long, without holding up the event loop."""
        path = self.locks / f"{name}.lock"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await wait_for_lock(fd)
            yield
        finally:
            os.close(fd)


async def wait_for_lock(fd: int) -> None:
    """Lock an open file that others may hold the lock of, without holding up the event loop."""
    import asyncio  # Whoever has no event loop does without.

    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            await asyncio.sleep(LOCK_POLL)


MACHINES_ACCOUNT = "encamp"
"""Root's machines run as this system account, which owns nothing else and may ask for nothing."""


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def user_directory() -> str:
    """Where a user's own configuration is."""
    chosen = os.environ.get("ENCAMP_USER_CONFIG")
    if chosen:
        return chosen
    # Not by pathlib: this is on the way of every job.
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    return f"{config}/encamp"


def login_path() -> str:
    """Where it is kept which site a user is logged in at."""
    return f"{user_directory()}/login.json"


def home_id_path(home: Home) -> Path:
    """Where an agent keeps what tells the home it works in from every other."""
    return home.root / "agent.id"


def default_home() -> Home:
    chosen = os.environ.get("ENCAMP_HOME")
    if chosen:
        return Home(Path(chosen).absolute())
    if os.geteuid() == 0:
        return Home(SYSTEM_HOME)
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Home(Path(data) / "encamp")
