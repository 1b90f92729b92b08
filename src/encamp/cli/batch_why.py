"""Why a job of a batch system is as it is: what hosts have written down of it, and what the batch
system itself says to whoever asks."""

from __future__ import annotations

import re
from collections import Counter

from encamp.cli.batch_jobs import records_told, state
from encamp.cli.tables import moment
from encamp.door.client import UnansweredError
from encamp.door.questions import AskBatchJobs
from encamp.model.batch import JobStanding
from encamp.model.batch_record import UNDER_WAY, BatchRecord, Outcome
from encamp.model.errors import Code, EncampError
from encamp.model.quantity import duration
from encamp.model.request import Explanation, Reason
from encamp.model.size import format_bytes

NAME = re.compile(r"(?:([a-z][a-z0-9_]*):)?([0-9]{1,12}(?:[._][0-9]{1,12})*)")
"""`slurm:17`, `17`, `slurm:17_3`, `gridengine:17.3`."""
MOST_LOOKED_AT = 1000
MOST_TOLD = 20

RELEASE = {
    "slurm": "scontrol release {id}",
    "gridengine": "qmod -cj {id}",
    "pbs": "qrls {id}",
}
"""How users let go of a job that is held."""

BACK = frozenset({Outcome.GIVEN_BACK, Outcome.HELD})


def check_number(name: str) -> None:
    """Raises an error if that is what is meant, and it is none."""
    from encamp.batch.adapters import known

    system, colon, rest = name.partition(":")
    if colon and system in known():
        raise EncampError(
            Code.USAGE,
            f"'{rest}' is not the number of a job of {system}.",
            f"Such jobs are called {system}:17, or with their task"
            f" {system}:17{'.' if system == 'gridengine' else '_'}3.",
        )


def explain_batch(name: str) -> Explanation | None:
    """None: nobody knows of such a job. `name` looks like one."""
    try:
        records, left_out = records_told(AskBatchJobs(id=name, last=MOST_LOOKED_AT))
    except UnansweredError:
        records, left_out = [], []  # The batch system may know.
    systems = sorted({record.system for record in records})
    if len(systems) > 1:
        raise EncampError(
            Code.USAGE,
            f"Jobs of several batch systems are called {name}.",
            f"Write {' or '.join(f'{system}:{name}' for system in systems)}.",
        )
    found = explanation(name, records, standing_of(name, systems[0] if systems else ""))
    if found is None and left_out:
        raise EncampError(
            Code.UNREACHABLE,
            f"Nobody who answers knows of job {name}; {left_out[0].host} {left_out[0].reason}.",
            "Ask again when it is back.",
            transient=True,
        )
    return found


def standing_of(name: str, system: str) -> JobStanding | None:
    """What this host's batch system says, if it is that one and answers."""
    from encamp.batch.adapters import open_batch_system
    from encamp.describe.batch_file import load_batch_settings

    named, _, id = name.rpartition(":")
    try:
        settings = load_batch_settings(of_host=True)
        if settings is None or (named or system) not in ("", settings.system):
            return None
        return open_batch_system(settings).standing(id)
    except (EncampError, OSError, ImportError):
        return None


def explanation(
    name: str, records: list[BatchRecord], standing: JobStanding | None
) -> Explanation | None:
    """`records`: the latest first."""
    if not records:
        return None if standing is None else _of_standing(name, standing)
    exact = [record for record in records if record.id == name.rpartition(":")[2]]
    ids = {record.id for record in records}
    if not exact and len(ids) > 1:
        return _of_array(name, records)
    records = exact or records
    latest = records[0]
    now = _now(latest, standing)
    return Explanation(
        kind="batch job",
        id=latest.full_id,
        name=latest.name,
        state=now,
        reason=Reason(
            sentence=_because(latest, standing),
            since=0.0 if _gone_on(latest, standing) else _since(latest),
            next=_next(latest, standing),
        ),
        history=tuple(map(_told, reversed(records[:MOST_TOLD]))),
    )


def _of_standing(name: str, standing: JobStanding) -> Explanation:
    wanted = f"; it wants environment '{standing.environment}'" if standing.environment else ""
    where = f" on {', '.join(standing.hosts)}" if standing.hosts else ""
    says = standing.reason or f"it is {standing.state}{where}"
    return Explanation(
        kind="batch job",
        id=name,
        state=_word(standing),
        reason=Reason(sentence=f"the batch system says: {says}{wanted}"),
    )


def _of_array(name: str, records: list[BatchRecord]) -> Explanation:
    """Of each task, the latest."""
    tasks: dict[str, BatchRecord] = {}
    for record in records:
        tasks.setdefault(record.id, record)
    counts = Counter(record.outcome.value for record in tasks.values())
    chosen = sorted(tasks.values(), key=lambda record: record.outcome not in BACK)[:MOST_TOLD]
    return Explanation(
        kind="batch jobs",
        id=f"{records[0].system}:{name.rpartition(':')[2]}",
        name=records[0].name,
        state=", ".join(f"{count} {word}" for word, count in sorted(counts.items())),
        reason=Reason(
            sentence=f"{len(tasks)} tasks of it have come to hosts",
            next=f"'encamp why {chosen[0].full_id}' tells more of one",
        ),
        history=tuple(f"{record.id}: {_told(record)}" for record in chosen),
    )


def _gone_on(latest: BatchRecord, standing: JobStanding | None) -> bool:
    """Does the batch system know later things than the host that had it?"""
    return standing is not None and latest.outcome not in UNDER_WAY and standing.waits


def _word(standing: JobStanding) -> str:
    if standing.held:
        return f"held ({standing.state})"
    return f"waiting ({standing.state})" if standing.waits else standing.state


def _now(latest: BatchRecord, standing: JobStanding | None) -> str:
    return _word(standing) if standing is not None and _gone_on(latest, standing) else state(latest)


def _since(record: BatchRecord) -> float:
    return record.ended or record.begun or record.came


def _because(latest: BatchRecord, standing: JobStanding | None) -> str:
    words = _outcome(latest)
    told = standing is not None and latest.reason and latest.reason in standing.reason
    if standing is not None and _gone_on(latest, standing) and standing.reason and not told:
        return f"{words}; the batch system says: {standing.reason}"
    return words


def _outcome(record: BatchRecord) -> str:
    why = f": {record.reason}" if record.reason else ""
    machine = f" in machine {record.machine[:8]}" if record.machine else ""
    match record.outcome:
        case Outcome.STARTING:
            return f"its machine is being made on {record.host}{why}"
        case Outcome.RUNNING:
            return f"it runs{machine} on {record.host}{why}"
        case Outcome.DONE:
            return f"it ended{machine} on {record.host} with {record.exit_code or 0}{why}"
        case Outcome.KILLED:
            by = f" by signal {record.signal}" if record.signal is not None else ""
            return f"it was ended on {record.host}{by}{why}"
        case Outcome.FAILED:
            return f"it could not be run on {record.host}{why}"
        case Outcome.GIVEN_BACK:
            return f"{record.host} gave it back to the queue{why}"
        case Outcome.HELD:
            return f"{record.host} gave it back to the queue, to be held there{why}"
        case Outcome.PLAIN:
            return f"it runs on {record.host} without a machine: it names no environment{why}"
        case Outcome.LOST:
            return f"what carried it out on {record.host} is gone{why}"


def _next(latest: BatchRecord, standing: JobStanding | None) -> str:
    held = standing.held if standing is not None else latest.outcome is Outcome.HELD
    if held:
        release = RELEASE.get(latest.system, "").format(id=latest.id)
        if standing is not None and standing.release:
            release = standing.release
        return f"it stays there until it is released{f': {release}' if release else ''}"
    if latest.outcome is Outcome.GIVEN_BACK and (standing is None or standing.waits):
        return "its batch system begins it again, here or elsewhere"
    return ""


def _told(record: BatchRecord) -> str:
    """One run of it, in a line."""
    parts = [f"{moment(record.came)} came to {record.host} ({record.environment})"]
    if record.tries > 1:
        parts.append(f"tried {record.tries} times")
    if record.begun:
        parts.append(f"began after {duration(max(0.0, record.begun - record.came))}")
    if record.ended:
        parts.append(f"{state(record)} at {moment(record.ended)}")
    if record.reason:
        parts.append(record.reason)
    if record.cpu_seconds is not None:
        parts.append(f"{record.cpu_seconds:.1f} s of processor time")
    if record.peak_memory is not None:
        parts.append(f"{format_bytes(record.peak_memory)} of memory at most")
    return ", ".join(parts)
