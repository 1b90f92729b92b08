"""The environments a job can ask for by name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from encamp.describe import compiled, places
from encamp.describe.sources import Level, Source
from encamp.home import default_home, user_name
from encamp.model.batch import with_nodes
from encamp.model.environment import DescriptionFile, Environment
from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.describe.library import Library
    from encamp.describe.nodes import Mistake
    from encamp.model.job import User

DEFAULT = "mini"
KEPT = "environments"
"""Where in the cache what was read from descriptions is kept."""


class UnreadError(EncampError):
    """A manager could not read one of its files. What was asked for may be described there."""

    def __init__(self, unread: list[str]) -> None:
        super().__init__(
            Code.CONFIGURATION,
            f"Not all environments of the site are known: {unread[0]}",
            "Whoever runs the site can mend that file.",
            detail="\n".join(unread[1:]),
        )


def find_environment(name: str) -> Environment:
    """An environment of the files that the caller's request is to be judged by.

    Later files cannot change what earlier ones describe. So mistakes in files that the wanted
    environment does not build on are nobody's business now."""
    return _find(name, places.environment_places())


def _find(name: str, searched: list[places.Place]) -> Environment:
    now = time.time_ns()
    found = places.look(searched)
    if not name.isascii():
        return _choose(_library(found), name)
    mark = compiled.stamp(Environment, name, [entry.stamp for entry in found])
    directory = default_home().cache / KEPT
    place = name.encode() + os.fsencode(found[-1].place.path if found[-1].status else "")
    environment = compiled.fetch(directory, place, mark, Environment)
    if environment is None:
        library = _library(found)
        environment = _choose(library, name)
        if not places.just_changed(found, now):
            mark = compiled.stamp(Environment, name, [entry.stamp for entry in found])
            compiled.keep(directory, place, mark, environment)
    return environment


def host_environment(name: str) -> Environment | None:
    """An environment as this host's own files describe it, wherever its agent was started; None: if
    they say nothing of it."""
    searched = places.environment_places()[: Level.HERE]
    try:
        return _find(name, searched)
    except EncampError:
        if is_described(name, searched):
            raise
        return None


def is_described(name: str, searched: list[places.Place]) -> bool:
    return name in _library(places.look(searched)).described


def is_shipped(environment: Environment) -> bool:
    """Does every host know it?"""
    return environment.origin == places.shipped_environments().path


def managed_environment(name: str) -> Environment:
    """One of a manager's, for somebody who does not see its files: what is wrong with them is not
    to look as if they did not describe it."""
    try:
        return find_environment(name)
    except EncampError:
        library = open_library()
        _check_read(library, _unread(library), name)
        raise


def managed_environments() -> tuple[dict[str, Environment], EncampError | None]:
    """All of a manager's that can be used, and what is wrong with its files."""
    library = open_library()
    described, unread = library.all(), _unread(library)
    if unread:
        return described, UnreadError(unread)
    return described, library.mistakes.error() if library.mistakes else None


def _check_read(library: Library, unread: list[str], name: str) -> None:
    """Is anything missing that files which could not be read may describe?"""
    if unread and _lacks(library, name):
        raise UnreadError(unread)


def _lacks(library: Library, name: str) -> bool:
    """Is the environment not described, or something that its files extend?"""
    if name not in library.described:
        return True
    mistakes = library.mistakes
    return not mistakes.strangers.isdisjoint(mistakes.of(library.sources_of(name)).found)


def _unread(library: Library) -> list[str]:
    """Why it is not known what some files describe: sentences."""
    senseless = library.mistakes.of(library.senseless)
    return [*library.ignored, *(f"{mistake}." for mistake in sorted(senseless.found))]


def own_files(name: str) -> tuple[DescriptionFile, ...]:
    """The caller's own files, which a site does not have, if one of them describes `name`."""
    found = places.look(places.environment_places())
    own = [entry for entry in found if entry.place.level > Level.SITE and entry.status is not None]
    if not own:
        return ()
    try:
        if is_shipped(find_environment(name)):
            return ()
    except EncampError:
        pass  # It may extend what only the site describes: that is for the site to judge.
    described = _library(found).described.get(name)
    if described is None or described.source.level.trusted:
        return ()
    return tuple(
        DescriptionFile(source.path, source.directory, data.decode())
        for source, data in places.read(own)
        if _is_text(source.directory) and _is_text(data)
    )


def _is_text(written: str | bytes) -> bool:
    try:
        written.encode() if isinstance(written, str) else written.decode()
    except UnicodeError:
        return False
    return True


def environment_in(
    name: str, files: Sequence[DescriptionFile], usable: Callable[[tuple[str, ...]], bool]
) -> Environment:
    """An environment that somebody else describes in files of his own, which are judged like those
    of a current directory. `usable`: may he use what is for these users? What he may not use he can
    neither extend nor refer to: nobody is to read here what he could not read himself."""
    library = open_library()
    unread = _unread(library)
    for other in list(library.described):
        if not usable(library.users_of(other)):
            del library.described[other]
    for number, file in enumerate(files):
        rank = len(places.environment_places()) + number
        source = Source(file.path, Level.HERE, rank, file.directory, file.path)
        library.add(source, file.text.encode())
    _check_read(library, unread, name)
    return _choose(library, name)


def all_environments() -> dict[str, Environment]:
    """All environments that can be used, if all that is described is in order."""
    library = open_library()
    environments = library.all()
    library.mistakes.raise_any()
    return environments


def environments_that_enrol(system: str) -> list[Environment]:
    """Those whose machines become worker nodes of a batch system."""
    found, system = all_environments().values(), with_nodes(system)
    return [one for one in found if one.enrol is not None and one.enrol.system == system]


def open_library() -> Library:
    """All that is described for the caller, mistakes included."""
    return _library(places.look(places.environment_places()))


def shipped_library() -> Library:
    """What Encamp ships, whatever the site and the user add."""
    return _library(places.look([places.shipped_environments()]))


def may_use(environment: Environment, user: User) -> bool:
    """Is this one of the users whom the environment is for?"""
    if not environment.users or user.uid == 0:
        return True
    return any(
        _is_group((user.gid, *user.groups), name[1:]) if name.startswith("@") else name == user.name
        for name in environment.users
    )


def check_use(environment: Environment, user: User) -> None:
    if not may_use(environment, user):
        raise EncampError(
            Code.NOT_PERMITTED,
            f"Environment '{environment.name}' is not for you: {', '.join(environment.users)} may"
            " use it.",
            "Ask whoever runs this site, or see 'encamp env ls' for others.",
        )


def is_for_caller(users: tuple[str, ...]) -> bool:
    """The same for whoever runs this process."""
    if not users or os.geteuid() == 0:
        return True
    groups = (os.getegid(), *os.getgroups())
    return any(
        _is_group(groups, name[1:]) if name.startswith("@") else name == user_name(os.geteuid())
        for name in users
    )


def _is_group(groups: tuple[int, ...], name: str) -> bool:
    import grp

    try:
        return grp.getgrnam(name).gr_gid in groups
    except KeyError:
        return False


def _library(found: list[places.Found], *, anybody: bool = False) -> Library:
    from encamp.describe.library import load

    library = load(places.read(found, anybody=anybody))
    library.ignored = [entry.refused for entry in found if entry.refused]
    return library


def _choose(library: Library, name: str) -> Environment:
    if _lacks(library, name):
        # What is missed may be described in a file that makes no sense.
        library.mistakes.of(library.senseless).raise_any()
    if name not in library.described:
        raise _unknown(library, name)
    library.described_again(name).raise_any()
    environment = library.environment(name)
    if library.mistakes.of(library.sources_of(name)) or environment is None:
        if library.is_abstract(name):
            raise _abstract(name)
        # If there is something to correct, then all of it at once.
        library.all()
        library.mistakes.of(library.sources_of(name)).raise_any()
        library.mistakes.raise_any()
    assert environment is not None, "what has no mistakes can be resolved"
    return environment


def _abstract(name: str) -> EncampError:
    return EncampError(
        Code.UNKNOWN_ENVIRONMENT,
        f"Environment '{name}' is abstract: it is only there to be extended.",
        "'encamp env ls' lists those that can be used.",
    )


def _unknown(library: Library, name: str) -> EncampError:
    from encamp.describe.library import nearest

    usable = [
        other
        for other in library.described
        if not library.is_abstract(other) and is_for_caller(library.users_of(other))
    ]
    # Its description may be where we could not or would not read it.
    return EncampError(
        Code.UNKNOWN_ENVIRONMENT,
        _none_of(name),
        nearest(name, usable),
        detail=_wrong(library, sorted(library.mistakes.found)),
    )


def wrong_beside_site() -> str:
    """What is wrong with the caller's files, whatever a site describes that they build on."""
    library = open_library()
    return _wrong(library, library.mistakes.without_strangers())


def _wrong(library: Library, mistakes: list[Mistake]) -> str:
    not_read = [f"Not read: {sentence}" for sentence in library.ignored]
    return "\n".join([*map(str, mistakes), *not_read])


def unknown_environment(name: str, usable: Callable[[tuple[str, ...]], bool]) -> EncampError:
    """Said to somebody who is told of no other environments than those he may use."""
    from encamp.describe.library import nearest

    library = open_library()
    if name in library.described and library.is_abstract(name):
        return _abstract(name)
    known = [
        other
        for other in library.described
        if not library.is_abstract(other) and usable(library.users_of(other))
    ]
    return EncampError(Code.UNKNOWN_ENVIRONMENT, _none_of(name), nearest(name, known))


def _none_of(name: str) -> str:
    return f"There is no environment '{name}'." if name else "The environment's name is empty."


def also_here(name: str) -> EncampError:
    return EncampError(
        Code.CONFIGURATION,
        f"This host describes an environment '{name}' of its own.",
        "Give yours another name.",
    )


def check_file(path: str, *, site: bool = False) -> int:
    """How many environments a file describes, if it is in order beside the files it builds on."""
    searched = places.environment_places()
    wanted = places.look([places.Place(path, Level.HERE)])[0]
    if wanted.status is None:
        if wanted.refused:
            raise EncampError(Code.INPUT_MISSING, wanted.refused)
        raise EncampError(
            Code.INPUT_MISSING, f"There is no file {path}.", "Name a file with descriptions."
        )
    found = places.look(searched[: Level.HERE])
    same = [entry for entry in found if entry.is_same(wanted)]
    level = same[0].place.level if same else Level.SITE if site else Level.HERE
    before = [entry for entry in found if entry.place.level < level]
    # Whose it is does not matter to somebody who only wants to know whether it is in order.
    checked = places.Found(places.Place(path, level), wanted.status)
    library = _library([*before, checked], anybody=True)
    library.all()
    library.mistakes.raise_any()
    if library.ignored:
        raise EncampError(Code.INPUT_MISSING, library.ignored[-1])
    return sum(entry.source.path == path for entry in library.described.values())
