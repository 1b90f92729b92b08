"""Whom an agent makes machines for, and where those keep theirs.

An agent of an ordinary account serves that account alone, in its own home. Root's serves everybody
who has an account on the host. What it does for another user is done by a process that has become
that user for good, in a home of that user's below its own: so nobody's machines, files or mistakes
can touch anybody else's. What owners can write there is read with care, and never followed.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from contextlib import suppress

from encamp.describe import places
from encamp.home import MACHINES_ACCOUNT, Home, user_name
from encamp.model.errors import Code, EncampError
from encamp.model.job import User
from encamp.own_files import check_readable

PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

PASSED = frozenset({"ENCAMP_MEMORY_OVERCOMMIT", "ENCAMP_COMMAND", "LANG", "LC_ALL", "TZ"})
"""Variables of the agent's that its owners' processes find, too."""


def served() -> tuple[str, ...] | None:
    """The users whom this process can make machines for; None: all that have an account here."""
    if os.geteuid() == 0:
        return None
    return (user_name(os.geteuid()),)


def account(name: str) -> pwd.struct_passwd:
    """The account of somebody whom this process can make machines for."""
    try:
        entry = pwd.getpwnam(name)
    except (KeyError, ValueError):
        raise EncampError(
            Code.NOT_PERMITTED,
            f"User {name[:80]!r} has no account on this host.",
            "Machines run as their owner: make an account there, or ask for other hosts.",
        ) from None
    if os.geteuid() not in (0, entry.pw_uid):
        raise EncampError(
            Code.NOT_PERMITTED,
            f"The agent of this host makes machines for {served_text()} alone, not for {name}.",
            "An agent that runs as root makes them for everybody.",
        )
    return _other_than_machines(entry)


def by_number(uid: int) -> pwd.struct_passwd:
    """The account of a user who is known to have one, for another part of the system knows it."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise EncampError(
            Code.NOT_PERMITTED, f"User number {uid} has no account on this host."
        ) from None
    return _other_than_machines(entry)


def _other_than_machines(entry: pwd.struct_passwd) -> pwd.struct_passwd:
    """Root's machines would share their account with such an owner's."""
    if os.geteuid() == 0 and entry.pw_name == MACHINES_ACCOUNT:
        raise EncampError(
            Code.NOT_PERMITTED,
            f"The account '{entry.pw_name}' is for the processes of root's machines, and has none"
            " of its own.",
            "Ask as another account.",
        )
    return entry


def served_text() -> str:
    return " and ".join(served() or ("everybody",))


def user_of(entry: pwd.struct_passwd) -> User:
    """An account as it is on this host."""
    from encamp.agent.caller import as_user

    groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    return as_user(entry.pw_uid, entry.pw_gid, groups)


def home_of(home: Home, uid: int) -> Home:
    """Where an owner's machines are kept."""
    return home if uid == os.geteuid() else Home(home.owners / str(uid))


def prepare_home(home: Home, entry: pwd.struct_passwd) -> Home:
    """Make sure that an owner has a home, which is nobody else's. For root."""
    own = home_of(home, entry.pw_uid)
    if own == home:
        return home.prepare()
    try:
        own.root.parent.mkdir(mode=0o711, exist_ok=True)
        own.root.parent.chmod(0o711)
        with suppress(FileExistsError):
            own.root.mkdir(mode=0o700)
        fd = os.open(own.root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise EncampError(
            Code.NOT_PERMITTED,
            f"Cannot make a directory for {entry.pw_name}'s machines: {error.strerror}.",
        ) from error
    try:
        if os.fstat(fd).st_uid != entry.pw_uid:
            # A new one; or its number has passed on to somebody else, who is not to find anything.
            if os.listdir(fd):
                raise EncampError(
                    Code.NOT_PERMITTED,
                    f"{own.root} belongs to somebody else, not to {entry.pw_name}.",
                    "Its former owner may have been given another number: remove it.",
                )
            os.fchown(fd, entry.pw_uid, entry.pw_gid)
        os.fchmod(fd, 0o711)
    finally:
        os.close(fd)
    return own


def become(
    entry: pwd.struct_passwd,
    home: Home,
    *,
    gid: int | None = None,
    groups: Sequence[int] | None = None,
) -> Home:
    """Turn this process into the owner's, for good; returns the owner's home. Nothing of the
    agent's rights and variables is left. An ordinary agent's own user it is already. `gid`,
    `groups`: as which groups, if not as the account's."""
    own = prepare_home(home, entry)
    gid = entry.pw_gid if gid is None else gid
    if entry.pw_uid != os.geteuid():
        # What is set up for the site is found there, whoever we are.
        places.keep_site_directory()
        if groups is None:
            os.initgroups(entry.pw_name, entry.pw_gid)
        else:
            os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(entry.pw_uid, entry.pw_uid, entry.pw_uid)
        with suppress(PermissionError):
            os.setuid(0)
            os._exit(1)  # Whoever can come back has not become anybody else.
        check_readable(entry.pw_name)
        kept = {name: value for name, value in os.environ.items() if name in PASSED}
        os.environ.clear()
        os.environ.update(kept)
        os.environ.update(
            PATH=PATHS,
            HOME=entry.pw_dir,
            USER=entry.pw_name,
            LOGNAME=entry.pw_name,
            # What its home directory describes is the owner's business on that host alone.
            ENCAMP_USER_CONFIG=str(own.root / "none"),
        )
        os.umask(0o022)
    os.environ["ENCAMP_HOME"] = str(own.root)
    os.chdir("/")
    return own.prepare()


# ── what owners' homes hold ──────────────────────────────────────────────────────────────────────


def owners(home: Home) -> list[int]:
    """The numbers of those who have a home here."""
    try:
        names = os.listdir(home.owners)
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if name.isdecimal())


def numbered(home: Home, uid: int) -> pwd.struct_passwd:
    """The account of an owner who has a home here, even if the account itself is gone."""
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        gid = os.lstat(home.owners / str(uid)).st_gid
        return pwd.struct_passwd((str(uid), "x", uid, gid, "", "/nonexistent", ""))
