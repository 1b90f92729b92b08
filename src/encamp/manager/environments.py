"""The environments of the site, as described on the manager's host, and those that somebody brings
along with a request. Changes in the files count from the next request on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from encamp.describe import places
from encamp.describe.environments import (
    UnreadError,
    all_environments,
    environment_in,
    managed_environment,
    managed_environments,
    unknown_environment,
)
from encamp.door.peer import Peer
from encamp.manager.rights import fits_user
from encamp.model.environment import DescriptionFile, Environment
from encamp.model.errors import Code, EncampError
from encamp.model.property import Value

MOST_BROUGHT = 100
"""Environments of somebody's own that are remembered."""
LONGEST_FILES = 100_000
"""Characters of all files that somebody may bring along with a request."""
LONGEST_PATH = 4096

LOG = logging.getLogger(__name__)


class Environments:
    def __init__(self) -> None:
        self._stamps: list[tuple[bytes | int, ...]] = []
        self._known: dict[str, Environment] = {}
        self._brought: dict[object, Environment] = {}
        self._noted = ""
        """What was logged of the files as they are now."""
        # Descriptions of strangers can be costly to read: they wait for each other and not for us.
        self._reading = asyncio.Lock()

    async def find(self, name: str) -> Environment:
        now = time.time_ns()
        found = self._look()
        stamps = self._stamps
        known = self._known.get(name)
        if known is None:
            # Reading many descriptions takes its time.
            known = await self._read(managed_environment, name)
            if stamps == self._stamps and not places.just_changed(found, now):
                self._known[name] = known
        return known

    async def find_for(
        self, peer: Peer, name: str, files: Sequence[DescriptionFile], *, administrator: bool
    ) -> tuple[Environment, bool]:
        """An environment for somebody's request, and whether it is of his own `files`. Those of the
        site come first, and nobody can bring another of the same name."""
        try:
            environment = await self.find(name)
        except EncampError as error:
            if error.code is not Code.UNKNOWN_ENVIRONMENT and not isinstance(error, UnreadError):
                raise
            if files:
                return await self._bring(peer, name, files, administrator=administrator), True
            raise await asyncio.to_thread(
                _unknown, error, peer, name, administrator=administrator
            ) from error
        check_use(environment, peer, administrator=administrator)
        if files and not await asyncio.to_thread(_is_in, environment, files):
            raise EncampError(
                Code.USAGE,
                f"The site describes an environment '{name}', and so does {files[-1].path}.",
                "Give yours another name; --local uses it as it is, on this host alone.",
            )
        return environment, False

    async def _bring(
        self, peer: Peer, name: str, files: Sequence[DescriptionFile], *, administrator: bool
    ) -> Environment:
        _check_files(files)
        asked = (name, tuple(files), peer.user, peer.groups, administrator)
        async with self._reading:
            now = time.time_ns()
            found = self._look()
            known = self._brought.get(asked)
            if known is None:
                known = await self._read(
                    environment_in,
                    name,
                    files,
                    lambda users: may_use(users, peer, administrator=administrator),
                )
                if not places.just_changed(found, now):
                    if len(self._brought) >= MOST_BROUGHT:
                        self._brought.clear()
                    self._brought[asked] = known
        check_use(known, peer, administrator=administrator)
        return known

    async def all(self) -> tuple[list[Environment], EncampError | None]:
        """Those that can be used, and what is wrong with the site's files."""
        self._look()
        described, wrong = await asyncio.to_thread(managed_environments)
        if isinstance(wrong, UnreadError):
            self._note(wrong)
        return list(described.values()), wrong

    async def _read(self, read: Callable[..., Environment], *arguments: object) -> Environment:
        """In a thread: reading many descriptions takes its time."""
        try:
            return await asyncio.to_thread(read, *arguments)
        except UnreadError as error:
            self._note(error)
            raise

    def _note(self, unread: UnreadError) -> None:
        """Log that a file cannot be read, once and not for each who asks."""
        if unread.sentence != self._noted:
            self._noted = unread.sentence
            LOG.warning("%s", unread.sentence)

    def _look(self) -> list[places.Found]:
        """What was known is forgotten if the site's files have changed."""
        found = places.look(places.environment_places())
        stamps = [entry.stamp for entry in found]
        if stamps != self._stamps:
            self._stamps, self._known, self._noted = stamps, {}, ""
            self._brought.clear()
        return found


def _check_files(files: Sequence[DescriptionFile]) -> None:
    if sum(len(file.text) for file in files) > LONGEST_FILES:
        raise EncampError(
            Code.USAGE,
            f"Your descriptions, {' and '.join(file.path for file in files)[:LONGEST_PATH]}, have"
            f" more than {LONGEST_FILES:,} characters, which is too much to go with a request.",
            "Move what this job does not need to a file of another directory.",
        )
    for file in files:
        paths = (file.path, file.directory)
        proper = all(len(path) <= LONGEST_PATH and path.isprintable() for path in paths)
        if not (proper and file.directory.startswith("/")):
            raise EncampError(Code.USAGE, "A file of descriptions has no proper path.")


def _is_in(environment: Environment, files: Sequence[DescriptionFile]) -> bool:
    """Is it from one of these, since the manager reads the same file?"""
    try:
        return any(
            file.path == environment.origin and Path(file.path).read_text() == file.text
            for file in files
        )
    except (OSError, UnicodeError):
        return False


def _unknown(error: EncampError, peer: Peer, name: str, *, administrator: bool) -> EncampError:
    """Only what somebody may use is suggested to him."""
    if administrator or isinstance(error, UnreadError):
        return error
    return unknown_environment(name, lambda users: may_use(users, peer, administrator=False))


def environment_facts() -> dict[str, dict[str, Value]]:
    """What expressions can know about each environment."""
    return {name: facts_of(environment) for name, environment in all_environments().items()}


def facts_of(environment: Environment) -> dict[str, Value]:
    image = environment.image
    return {
        "name": environment.name,
        "cpus": environment.size.cpus,
        "memory": environment.size.memory,
        "classes": list(environment.classes),
        "reuse": environment.reuse,
        "enrols": environment.enrol.system if environment.enrol else "",
        "image": image if isinstance(image, str) else image.name or environment.name,
    }


def may_use(users: tuple[str, ...], peer: Peer, *, administrator: bool) -> bool:
    """Is somebody one of the users whom an environment is for?"""
    return administrator or not users or fits_user(users, peer.user, peer.groups)


def check_use(environment: Environment, peer: Peer, *, administrator: bool) -> None:
    """Refuse whom the environment is not for."""
    if not may_use(environment.users, peer, administrator=administrator):
        raise EncampError(
            Code.NOT_PERMITTED,
            f"Environment '{environment.name}' is not for {peer.user}:"
            f" {', '.join(environment.users)} may use it.",
            "Ask whoever runs this site, or see 'encamp env ls' for others.",
        )
