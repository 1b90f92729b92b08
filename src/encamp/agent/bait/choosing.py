"""What a batch job gets: which environment, of what size, and which directories of the host."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from encamp.agent.bait.frames import NAME
from encamp.agent.caller import group_names
from encamp.batch.system import AROUND
from encamp.machines.hardware import SHARES
from encamp.model.batch import BatchJob, BatchSettings, Rule, Task
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.job import User
from encamp.model.machine import After, Share
from encamp.model.size import MIB, Size, format_bytes
from encamp.model.wanted import LEAST_MEMORY

STEP = 16 * MIB
"""Machines differ in memory by this at least, so that one template serves many jobs."""

GROUPS = Path("/sys/fs/cgroup")

BELOW = ("/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/run", "/sbin", "/sys", "/usr")
"""Where the environment's own system is: nothing of the host is shown there,"""
ITSELF = ("/", "/opt", "/srv", "/var", "/var/lib", "/var/log", "/var/spool", "/mnt", "/media")
"""nor instead of these; what is below them may be."""


def choose_environment(asked: str, job: BatchJob, settings: BatchSettings, user: User) -> str:
    """The one that was asked for, or that a rule gives; empty: none, the job is left alone."""
    named = asked or job.environment
    if named:
        if NAME.fullmatch(named) is None:
            raise EncampError(Code.USAGE, f"{named[:80]!r} cannot be an environment's name.")
        return named
    fitting = (rule for rule in settings.rules if _fits(rule, job, user))
    rule = next(fitting, None)
    return "" if rule is None else rule.environment


def _fits(rule: Rule, job: BatchJob, user: User) -> bool:
    return (
        rule.queue in ("", job.queue)
        and rule.account in ("", job.account)
        and rule.user in ("", user.name)
        and (not rule.group or rule.group in (user.group, *group_names(user).values()))
    )


def check_no_nodes(environment: Environment) -> None:
    """Machines that are nodes of the batch system get their jobs from that."""
    if environment.enrol is not None:
        raise EncampError(
            Code.USAGE,
            f"Machines of environment '{environment.name}' are worker nodes of the batch system:"
            " no other host can have jobs for them.",
            "'encamp batch install' has such jobs wait for a node: run it again.",
        )


def may_stay(environment: Environment) -> bool:
    """Is its machine left to the next job of its owner's?"""
    return environment.reuse and environment.after is After.DESTROY


# ── its size ─────────────────────────────────────────────────────────────────────────────────────


def choose_size(
    job: BatchJob,
    task: Task,
    environment: Environment,
    settings: BatchSettings,
    limit: int | None,
) -> Size:
    """By what the job was granted, divided among its tasks here. `limit`: the memory that its
    control group may hold. Of all limits the machine's process needs some for itself."""
    default = settings.size or environment.size
    tasks = max(1, task.count)
    whole = job.cpus or 1
    part = whole if task.cpus is None else max(1, min(whole, task.cpus))
    cpus = default.cpus if job.cpus is None else max(1, part // tasks)
    memory = default.memory if job.memory is None else job.memory * part // whole // tasks
    beside = 0
    for most in (limit, job.limit):
        if most is not None:
            beside = AROUND
            memory = min(memory, most // tasks - beside)
    may = memory
    if memory < default.memory or job.memory is not None:
        memory = memory // STEP * STEP
    if memory < LEAST_MEMORY:
        around = f", beside {format_bytes(beside)} for the processes around it" if beside else ""
        raise EncampError(
            Code.USAGE,
            f"A machine needs at least {format_bytes(LEAST_MEMORY)} of memory{around}, and may"
            f" have {format_bytes(max(0, may))} for this job.",
            f"Ask the batch system for {format_bytes(LEAST_MEMORY + beside)} or more.",
        )
    return Size(cpus=min(cpus, os.cpu_count() or 1), memory=memory, disk=default.disk)


def memory_limit(pid: int) -> int | None:
    """Bytes that the control groups of a process may hold; None: no limit but the host's."""
    limits = []
    for controllers, path in control_groups(pid):
        if controllers == "":
            base, name = _unified(), "memory.max"
        elif "memory" in controllers.split(","):
            base, name = GROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = base / path.lstrip("/")
        while group.is_relative_to(base):
            with suppress(OSError, ValueError):
                limits.append(int((group / name).read_text()))
            group = group.parent
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    least = min(limits, default=total)
    return least if least < total else None


def control_groups(pid: int) -> list[tuple[str, str]]:
    """Controllers and path of each group that a process is in; `""` for the unified hierarchy."""
    found = []
    # Whose group it is may have called it anything.
    with suppress(OSError), Path(f"/proc/{pid}/cgroup").open("rb") as lines:
        for line in lines:
            _, controllers, path = os.fsdecode(line.rstrip(b"\n")).split(":", 2)
            found.append((controllers, path))
    return found


def _unified() -> Path:
    """Where the unified hierarchy is mounted, alone or beside the others."""
    mixed = GROUPS / "unified"
    return mixed if mixed.is_dir() else GROUPS


# ── directories ──────────────────────────────────────────────────────────────────────────────────


def choose_shares(
    everybodys: Iterable[str], home: str, directory: str, taken: Iterable[str] = ()
) -> tuple[Share, ...]:
    """Directories of the host that a job finds in its machine, live: those that the site shows to
    all, its home, and where it starts. For a process with the rights of the job's user. `taken`:
    what the environment shows there already, whatever it is."""
    chosen: list[str] = []
    most = SHARES - len(tuple(taken))
    for path in (*everybodys, home, directory):
        if (
            path.startswith("/")
            and is_text(path)
            and not is_systems(path)
            and not is_covered(path, (*chosen, *taken))
            and os.access(path, os.R_OK | os.X_OK)
            and Path(path).is_dir()
        ):
            # What lies in it is seen through it.
            chosen = [one for one in chosen if not is_covered(one, (path,))]
            chosen.append(path)
    return tuple(Share(source=path, path=path) for path in chosen[:most])


def is_text(path: str) -> bool:
    """Can it be written down? Names of files are bytes, and not all bytes are text."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_systems(path: str) -> bool:
    """Is this the machine's own business?"""
    plain = os.path.normpath(path)
    if plain in ITSELF or plain.startswith(("/lib32", "/lib64", "/libx32")):
        return True
    return not plain.startswith("/usr/local/") and is_covered(plain, BELOW)


def is_covered(path: str, by: Iterable[str]) -> bool:
    return any(f"{path}/".startswith(f"{one.rstrip('/')}/") for one in by)
