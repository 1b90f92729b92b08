"""What a batch job finds in its machine: its script, the directory it calls temporary, its
variables and limits."""

from __future__ import annotations

import os
import posixpath
import re
import stat
import time
from contextlib import suppress

from encamp.agent.bait.choosing import is_covered
from encamp.agent.bait.frames import Asked
from encamp.agent.copying import ROOT, builtin, is_directory, outcome
from encamp.agent.surroundings import variables_for
from encamp.guest.archive_format import START, Entry, Kind
from encamp.guest.archive_pack import pack_content
from encamp.guest.channel import Channel, Exec
from encamp.model.errors import Code, EncampError
from encamp.model.job import User
from encamp.model.machine import Machine

DIRECTORY = "/run/encamp/job"
"""Where the script is put. Not where it was: that is a place of the batch system's, which the job
could not write to."""
SCRIPT = re.compile(r"[A-Za-z0-9._+-]{1,200}")
TEMPORARY = ("/tmp", "/var/tmp")
TEMPORARIES = ("TMPDIR", "TMP", "TEMP")
"""Variables that name the job's own."""

PATHS = "PATH"
PAPERS = {"PE_HOSTFILE": "pe_hostfile"}
"""Variables that name a file of the batch system's own, and what it is called in the machine."""
LARGEST_PAPER = 1 << 20


async def furnish(channel: Channel, asked: Asked, user: User, machine: Machine) -> dict[str, str]:
    """Put there what the job needs and the machine does not have. Variables that say something else
    there than outside."""
    if asked.script is not None:
        content = pack_content(
            _script_name(asked), asked.script, mode=0o700, mtime_ns=time.time_ns()
        )
        await _unpack(channel, content, DIRECTORY, user, "its script")
    for name, content in _papers(asked, machine).items():
        paper = pack_content(PAPERS[name], content, mode=0o600, mtime_ns=time.time_ns())
        await _unpack(channel, paper, DIRECTORY, user, f"the file of {name}")
    temporary = posixpath.normpath(asked.variables.get("TMPDIR", ""))
    shown = [share.path for share in machine.shares]
    if not temporary.startswith("/") or is_covered(temporary, shown):
        return {}
    if await _make_temporary(channel, temporary, user):
        return {}
    named = asked.variables["TMPDIR"]
    return {name: TEMPORARY[0] for name in TEMPORARIES if asked.variables.get(name) == named}


def _papers(asked: Asked, machine: Machine) -> dict[str, bytes]:
    """What is in files that the batch system has written for the job, and that it cannot see from
    its machine. Read with the rights of the job's user."""
    found = {}
    for name in PAPERS:
        path = asked.variables.get(name, "")
        if path.startswith("/") and not is_covered(path, (share.path for share in machine.shares)):
            with suppress(OSError):
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                with open(fd, "rb") as file:
                    if stat.S_ISREG(os.fstat(fd).st_mode):
                        found[name] = file.read(LARGEST_PAPER)
    return found


async def _make_temporary(channel: Channel, path: str, user: User) -> bool:
    """Below what is temporary for everybody, or where the image has nothing at all: nobody gets a
    directory of the system's for his own by naming it. Is it there now?"""
    if await is_directory(channel, path, user):
        return True
    top = "/" + path.split("/")[1]
    if not is_covered(path, TEMPORARY) and await is_directory(channel, top, ROOT):
        return False
    directory, name = posixpath.split(path)
    entry = Entry(kind=Kind.DIRECTORY, name=name.encode(), mode=0o700, mtime_ns=time.time_ns())
    archive = START + entry.encode() + Entry(kind=Kind.END).encode()
    await _unpack(channel, archive, directory, user, f"directory {path}")
    return True


async def _unpack(channel: Channel, archive: bytes, directory: str, user: User, what: str) -> None:
    stream = builtin(channel, ROOT, "unpack", directory, str(user.uid), str(user.gid))
    stream.stdout.discard()
    await stream.write(archive)
    await stream.end()
    ended, said = await outcome(stream)
    if ended.code != 0:
        raise EncampError(
            Code.COPY_FAILED, f"{what} could not be put into the machine: {said}.", transient=True
        )


def command_of(asked: Asked) -> tuple[bytes, ...]:
    """The words of the command."""
    if asked.script is None:
        return asked.arguments
    script = os.fsencode(f"{DIRECTORY}/{_script_name(asked)}")
    return (*asked.start, script, *asked.arguments)


def _script_name(asked: Asked) -> str:
    name = posixpath.basename(asked.script_name)
    return name if SCRIPT.fullmatch(name) and name not in (".", "..") else "script"


def exec_of(
    asked: Asked,
    user: User,
    machine: Machine,
    *,
    changed: dict[str, str],
    terminal: tuple[int, int] | None,
    merged: bool,
) -> Exec:
    return Exec(
        args=list(command_of(asked)),
        env=_variables(asked, user, machine) | changed,
        cwd=asked.directory,
        fallback="/",
        uid=user.uid,
        gid=user.gid,
        groups=list(user.groups),
        terminal=terminal,
        umask=asked.umask,
        limits={number: (soft, hard) for number, soft, hard in asked.limits},
        merged=merged,
    )


def _variables(asked: Asked, user: User, machine: Machine) -> dict[str, str]:
    """The job's own; and what the environment has beside them."""
    variables = {**variables_for(user, machine), **asked.variables}
    for name in ("ENCAMP_MACHINE", "ENCAMP_ENVIRONMENT"):
        variables[name] = variables_for(user, machine)[name]
    for name in _papers(asked, machine):
        variables[name] = f"{DIRECTORY}/{PAPERS[name]}"
    own = asked.variables.get(PATHS, "").split(":")
    more = machine.variables.get(PATHS, "").split(":")
    if PATHS in asked.variables and PATHS in machine.variables:
        variables[PATHS] = ":".join([*own, *(one for one in more if one not in own)])
    return variables
