"""Handing a machine its context: files, users, keys, user data and commands, at its first start."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from encamp.agent.copying import ROOT, builtin, outcome
from encamp.agent.surroundings import variables_for
from encamp.describe.late import late_references
from encamp.guest import messages as guest
from encamp.guest.archive_pack import pack, pack_content
from encamp.guest.archive_read import printable
from encamp.guest.channel import Channel, Exec
from encamp.model.environment import Account, Context, Environment
from encamp.model.errors import Code, EncampError
from encamp.model.job import User
from encamp.model.machine import Machine, Share
from encamp.model.recipe import AddedFile

FILE_MODE = 0o644
KEYS = ".ssh/authorized_keys"
USER_DATA = "/run/encamp/user-data"
PATH_MAX = 4096
LINES = 5
"""How much of what a failing command said is told."""

Tell = Callable[[str], None]
"""Called with what is handed over next."""

RUN = """
mkdir -p /run/encamp && log="/run/encamp/run-$1.log" || exit
/bin/sh -c "$2" </dev/null >"$log" 2>&1 && exit
code=$?
while IFS= read -r line || [ -n "$line" ]; do printf '%s\\n' "$line"; done <"$log" >&2
exit $code
"""
"""Runs one command of the context. Its output goes to a file: whatever it leaves running in the
background writes there for ever, and nobody waits for it."""


def check_context(environment: Environment, *, resolved: bool) -> None:
    """Refuse what cannot be handed over before a machine is made for it. A path with a late
    reference is looked at when that is `resolved`."""
    for file in environment.context.files:
        looked_at = resolved or not late_references(file.path)
        if looked_at and not _names_a_file(file.path):
            raise _wrong(
                environment,
                f"'{file.path}' is not an absolute path of a file without '..'",
                "Correct the description and try again.",
            )
        if (file.content is None) == (file.source is None):
            raise _wrong(
                environment,
                f"file {file.path} needs either content or a source",
                "Correct the description and try again.",
            )
        if file.source is not None and not Path(file.source).exists():
            raise EncampError(
                Code.INPUT_MISSING,
                f"The context of environment '{environment.name}' wants {file.source} as"
                f" {file.path}: it does not exist.",
                "It is a file or directory of this host.",
            )


def _names_a_file(path: str) -> bool:
    return path.startswith("/") and posixpath.normpath(path) == path.rstrip("/")


async def hand_over(
    channel: Channel, machine: Machine, environment: Environment, owner: User, tell: Tell
) -> tuple[str, ...]:
    """Hand all of it over, in order. The paths of the single files that are the machine's own from
    now on: whoever saves the machine as an image leaves them out."""
    context = environment.context
    handed: list[str] = []
    for account in context.users:
        tell(f"user '{account.name}'")
        await _add_user(channel, environment, account)
    for file in context.files:
        what = f"file {file.path}"
        tell(what)
        directory, name = posixpath.split(file.path.rstrip("/"))
        place = await unpack(
            channel, environment, what, _content(file, name), directory, file.owner, file.group
        )
        if file.content is not None or not Path(file.source or "").is_dir():
            handed.append(posixpath.join(place, name))
    for login in _logins(context, owner, machine.shares):
        archive = _secret(KEYS, "".join(f"{key.strip()}\n" for key in login.keys))
        what = f"the ssh keys in {login.home}"
        tell(what)
        place = await unpack(
            channel, environment, what, archive, login.home, str(login.uid), str(login.gid)
        )
        handed.append(posixpath.join(place, KEYS))
    if context.user_data is not None:
        directory, name = posixpath.split(USER_DATA)
        archive = _secret(name, context.user_data)
        await unpack(channel, environment, "user data", archive, directory, "0", "0")
    for number, command in enumerate(context.run, 1):
        tell(f"command '{first_line(command)}'")
        await _run(channel, machine, environment, number, command)
    return tuple(handed)


def _content(file: AddedFile, name: str) -> Iterator[bytes]:
    if file.source is not None:
        return pack([(Path(file.source), name)], mode=file.mode)
    mode = FILE_MODE if file.mode is None else file.mode
    content = (file.content or "").encode()
    return iter((pack_content(name, content, mode=mode, mtime_ns=time.time_ns()),))


def _secret(name: str, content: str) -> Iterator[bytes]:
    return iter((pack_content(name, content.encode(), mode=0o600, mtime_ns=time.time_ns()),))


async def unpack(
    channel: Channel,
    environment: Environment,
    what: str,
    archive: Iterator[bytes],
    directory: str,
    owner: str,
    group: str,
) -> str:
    """Unpack into a directory of the machine, and say which one that was: links in its path may
    lead elsewhere."""
    stream = builtin(channel, ROOT, "unpack", directory, owner, group)
    for piece in archive:
        if stream.unread:
            break
        await stream.write(piece)
    await stream.end()
    ended, said = await outcome(stream)
    if ended.code != 0:
        raise _wrong(environment, f"{what} could not be put into the machine: {last_lines(said)}")
    place = b""
    async for piece in stream.stdout:
        place += piece
        if len(place) > PATH_MAX:
            break
    try:
        return checked_place(place)
    except ValueError as error:
        raise _wrong(environment, f"{what} went to a directory {error}") from None


def checked_place(place: bytes) -> str:
    """Where a machine says that it has put something. Whoever cannot write that down would not
    know what to leave out of an image."""
    path = place.decode(errors="replace")
    if path.encode() != place:
        raise ValueError("whose name is not UTF-8")
    if not path.startswith("/") or len(place) > PATH_MAX or "\0" in path:
        raise ValueError("that has no name")
    return path


async def _add_user(channel: Channel, environment: Environment, account: Account) -> None:
    user = guest.User(
        name=account.name,
        uid=account.uid,
        gid=group_of(account),
        group=account.name,
        home=home_of(account),
        shell=account.shell,
        exact=True,
    )
    try:
        await channel.user(user)
    except EncampError as error:
        if error.code is not Code.CONFIGURATION:
            raise
        raise _wrong(environment, f"user '{account.name}': {error.sentence}") from error


class Login(msgspec.Struct):
    """A home, whose it is, and who may enter."""

    home: str
    uid: int
    gid: int
    keys: tuple[str, ...]


def _logins(context: Context, owner: User, shares: tuple[Share, ...]) -> list[Login]:
    """Whose home gets which keys. A home that is a directory of the host is left alone: those
    keys would open the host."""
    logins: dict[str, Login] = {}
    if context.ssh_keys:
        for user in (owner, ROOT):
            logins[user.home] = Login(user.home, user.uid, user.gid, context.ssh_keys)
    for account in context.users:
        if account.ssh_keys:
            home, gid = home_of(account), group_of(account)
            login = logins.setdefault(home, Login(home, account.uid, gid, ()))
            login.keys += account.ssh_keys
    return [login for login in logins.values() if not _shared(login.home, shares)]


def _shared(path: str, shares: tuple[Share, ...]) -> bool:
    return any(f"{path}/".startswith(f"{share.path.rstrip('/')}/") for share in shares)


def home_of(account: Account) -> str:
    return account.home or f"/home/{account.name}"


def group_of(account: Account) -> int:
    return account.uid if account.gid is None else account.gid


async def _run(
    channel: Channel, machine: Machine, environment: Environment, number: int, command: str
) -> None:
    what = f"command '{first_line(command)}'"
    stream = channel.execute(
        Exec(
            args=["/bin/sh", "-c", RUN, "context", str(number), command],
            env=variables_for(ROOT, machine),
            cwd="/",
        )
    )
    await stream.end()
    stream.stdout.discard()
    ended, said = await outcome(stream)
    if not ended.started:
        raise _wrong(environment, f"{what} could not be run: {ended.text}")
    if ended.code != 0:
        raise _wrong(
            environment,
            f"{what} exited with {ended.code}" + (f", saying: {last_lines(said)}" if said else ""),
        )


def first_line(command: str) -> str:
    """A command in one line that may be shown; '…' stands for the rest of it."""
    first, *more = command.strip().splitlines() or [""]
    return printable(first.rstrip().encode()) + (" …" if more else "")


def last_lines(said: str) -> str:
    """The end of what a command said, as it may be shown."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return printable(" / ".join(lines[-LINES:]).encode())


DESTROYED = "The machine was destroyed. Correct the description and try again."


def _wrong(environment: Environment, sentence: str, hint: str = DESTROYED) -> EncampError:
    where = f" ({environment.origin})" if environment.origin else ""
    return EncampError(
        Code.CONFIGURATION,
        f"The context of environment '{environment.name}'{where} cannot be handed over:"
        f" {sentence}.",
        hint,
    )
