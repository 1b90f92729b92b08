"""What a batch job finds in its machine: its script, the directory it calls temporary, its
variables and limits."""

from __future__ import annotations

import os
import posixpath
import re
import stat
from contextlib import suppress

from encamp.agent.bait.choosing import is_covered
from encamp.agent.bait.frames import Asked
from encamp.agent.surroundings import variables_for
from encamp.guest.channel import Exec, File
from encamp.model.job import User
from encamp.model.machine import Machine

DIRECTORY = "/run/encamp/job"
"""Where the script is put. Not where it was: that is a place of the batch system's, which the job
could not write to."""
SCRIPT = re.compile(r"[A-Za-z0-9._+-]{1,200}")
PATHS = "PATH"
PAPERS = {"PE_HOSTFILE": "pe_hostfile"}
"""Variables that name a file of the batch system's own, and what it is called in the machine."""
LARGEST_PAPER = 1 << 20
LONGEST_PATH = 4096


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


def _temporary(asked: Asked, machine: Machine) -> str | None:
    """The directory that the job calls temporary, if it is not one of the host's inside."""
    path = posixpath.normpath(asked.variables.get("TMPDIR", ""))
    is_shown = is_covered(path, [share.path for share in machine.shares])
    is_path = path.startswith("/") and len(os.fsencode(path)) < LONGEST_PATH
    return path if is_path and not is_shown else None


def command_of(asked: Asked) -> tuple[bytes, ...]:
    """The words of the command."""
    if asked.script is None:
        return asked.arguments
    script = os.fsencode(f"{DIRECTORY}/{_script_name(asked)}")
    return (*asked.start, script, *asked.arguments)


def interpreter_of(asked: Asked) -> str:
    """The program that a script's own first line starts it with; empty: it is started otherwise."""
    if asked.start or asked.script is None or not asked.script.startswith(b"#!"):
        return ""
    words = asked.script[2:].partition(b"\n")[0].strip(b" \t").replace(b"\t", b" ").split(b" ")
    return os.fsdecode(words[0])


def _script_name(asked: Asked) -> str:
    name = posixpath.basename(asked.script_name)
    return name if SCRIPT.fullmatch(name) and name not in (".", "..") else "script"


def exec_of(
    asked: Asked,
    user: User,
    machine: Machine,
    *,
    terminal: tuple[int, int] | None,
    merged: bool,
) -> Exec:
    """The job's command, and what comes with it: all of it goes to the machine as one, and nothing
    has to be waited for."""
    papers = _papers(asked, machine)
    files = {f"{DIRECTORY}/{PAPERS[name]}": File(0o600, papers[name]) for name in papers}
    if asked.script is not None:
        files[f"{DIRECTORY}/{_script_name(asked)}"] = File(0o700, asked.script)
    variables = _variables(asked, user, machine)
    variables |= {name: f"{DIRECTORY}/{PAPERS[name]}" for name in papers}
    return Exec(
        args=list(command_of(asked)),
        env=variables,
        cwd=asked.directory,
        fallback="/",
        tells_fallback=True,
        uid=user.uid,
        gid=user.gid,
        groups=list(user.groups),
        terminal=terminal,
        umask=asked.umask,
        limits={number: (soft, hard) for number, soft, hard in asked.limits},
        merged=merged,
        files=files,
        temporary=_temporary(asked, machine),
    )


def _variables(asked: Asked, user: User, machine: Machine) -> dict[str, str]:
    """The job's own; and what the environment has beside them."""
    variables = {**variables_for(user, machine), **asked.variables}
    for name in ("ENCAMP_MACHINE", "ENCAMP_ENVIRONMENT"):
        variables[name] = variables_for(user, machine)[name]
    own = asked.variables.get(PATHS, "").split(":")
    more = machine.variables.get(PATHS, "").split(":")
    if PATHS in asked.variables and PATHS in machine.variables:
        variables[PATHS] = ":".join([*own, *(one for one in more if one not in own)])
    return variables
