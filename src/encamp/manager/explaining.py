"""Why something is as it is: of jobs, machines, hosts, triggers and commands, by id or name."""

from __future__ import annotations

import time
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from encamp.core.actions import Judged
from encamp.core.picture import joined
from encamp.core.schema import Schema
from encamp.core.seen import seen_in_words
from encamp.door.peer import Peer
from encamp.local_time import local_zone
from encamp.manager.moving import both_meant
from encamp.manager.restoration import HINT
from encamp.manager.rights import is_administrator
from encamp.manager.visibility import Visibility
from encamp.model.command import IN_WORDS, OVER, CommandRecord, CommandState
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine
from encamp.model.request import (
    Cause,
    Explanation,
    Reason,
    RequestRecord,
    RequestState,
)
from encamp.model.trigger import TriggerView

if TYPE_CHECKING:
    from encamp.manager.daemon import Manager

MOST_HOSTS = 10_000
JUDGEMENTS = 20
"""Entries of a trigger's log that are told."""
MOST_SEEN = 10
"""Values that each of them has seen."""


async def explain(manager: Manager, peer: Peer, name: str, hosts: int) -> Explanation:
    owner = "" if is_administrator(peer) else peer.user
    now = time.time()
    if name in manager.core.picture.hosts:
        return manager.core.placement.why_host(name, now, owner)
    view = manager.core.engine.view(name)
    if view is not None:
        schema, visibility = manager.core.picture.world.schema, Visibility(manager, peer)
        look = partial(manager.store.judged, name)
        entries = await visibility.latest(look, JUDGEMENTS, visibility.judged)
        return _trigger(visibility.trigger(view), entries, schema)
    record: RequestRecord | None = None
    unclear: EncampError | None = None
    try:
        administrator = is_administrator(peer)
        record = await manager.desk.requests.meant(peer, name, administrator=administrator)
    except EncampError as error:
        if error.code is not Code.USAGE:
            raise
        unclear = error if error.sentence.startswith("Several") else None
    machines = _machines(manager, name)
    called = [one for one in machines if name in (one[1].id, one[1].name)]
    # A machine's whole name counts for more than the beginning of a job's id.
    if record is not None and (not called or name in (record.request.id, record.request.label)):
        for made_for in filter(None, (_request_of(manager, owner, *one) for one in called)):
            if made_for.request.id != record.request.id:
                raise both_meant(name, record.request.id, made_for.request.id)
        return _request(manager, record, now, max(0, min(hosts, MOST_HOSTS)))
    if len(machines) == 1:
        return _machine(manager, owner, *machines[0])
    if unclear is None and not machines:
        return await _command(manager, owner, name)
    raise unclear or EncampError(
        Code.USAGE,
        f"Several machines are '{name[:64]}', such as "
        + " and ".join(f"{machine.id[:8]} on {host}" for host, machine in machines[:2])
        + ".",
        "Write more of the id.",
    )


# ── requests ─────────────────────────────────────────────────────────────────────────────────────


def _request(manager: Manager, record: RequestRecord, now: float, hosts: int) -> Explanation:
    request = record.request
    if request.id in manager.core.placement.records:
        found = manager.core.placement.why(request.id, now, hosts)
        restored = manager.restoration.sentence
        if restored and record.state is RequestState.WAITING:
            return msgspec.structs.replace(found, reason=Reason(sentence=restored, next=HINT))
        return found
    history = [f"{_at(request.submitted)} {request.owner} asked for it"]
    if record.started:
        where = ", ".join(sorted({part.host for part in record.parts})[:3])
        history.append(f"{_at(record.started)} it began on {where}")
    if record.ended:
        code = "" if record.exit_code is None else f" with exit code {record.exit_code}"
        history.append(f"{_at(record.ended)} it ended: {record.state.value}{code}")
    return Explanation(
        kind="job" if request.job is not None else "request",
        id=request.id,
        name=request.label,
        state=record.state.value,
        reason=record.reason,
        history=tuple(history),
    )


def _request_of(manager: Manager, owner: str, host: str, machine: Machine) -> RequestRecord | None:
    """What a machine was made for, if whoever asks may know."""
    request = manager.desk.requests.standing.made_for(host, machine.id)
    record = manager.core.placement.records.get(request) if request is not None else None
    return record if record is not None and owner in ("", record.request.owner) else None


# ── machines ─────────────────────────────────────────────────────────────────────────────────────


def _machines(manager: Manager, name: str) -> list[tuple[str, Machine]]:
    found = [
        (host, machine)
        for host, state in manager.core.picture.hosts.items()
        for machine in state.machines.values()
        if name and (machine.name == name or machine.id.startswith(name))
    ]
    exact = [one for one in found if name in (one[1].id, one[1].name)]
    return exact or found


def _machine(manager: Manager, owner: str, host: str, machine: Machine) -> Explanation:
    record = manager.core.picture.hosts[host].record
    history = [f"{_at(machine.created)} it was made of {machine.environment} on {host}"]
    made_for = _request_of(manager, owner, host, machine)
    if made_for is not None:
        what = "job" if made_for.request.job is not None else "request"
        history.append(f"for {what} {made_for.request.id[:8]} of {made_for.request.owner}")
    reason = Reason(sentence=machine.reason, since=machine.changed)
    if not joined(record):
        reason = Reason(
            cause=Cause.HOST_LOST,
            sentence=f"it was {machine.state.value} ({machine.reason}) when its host {host}"
            f" was last heard of, which is {record.presence.value}: {record.reason}",
            since=record.since,
            next="how it is will be known when the host is back",
        )
    return Explanation(
        kind="machine",
        id=machine.id,
        name=machine.name,
        state=machine.state.value,
        reason=reason,
        history=tuple(history),
    )


# ── triggers ─────────────────────────────────────────────────────────────────────────────────────


def _trigger(view: TriggerView, entries: list[Judged], schema: Schema) -> Explanation:
    if view.stopped:
        state, then = "stopped", "'encamp trigger reload' lets it fire again"
    elif not view.options.get("enabled", True):
        state, then = "disabled", f"it is not watched: see 'enabled' at {view.place}"
    else:
        state, then = "watched", "it is looked at again when what it speaks of changes"
    latest = entries[-1] if entries else None
    told = _judged(latest, schema) if latest is not None else "nothing was found out about it yet"
    return Explanation(
        kind="trigger",
        id=view.name,
        name=view.name,
        state=state,
        reason=Reason(sentence=view.stopped or told, since=latest.at if latest else 0.0, next=then),
        history=tuple(f"{_at(entry.at)} {_judged(entry, schema)}" for entry in entries),
    )


def _judged(entry: Judged, schema: Schema) -> str:
    about = f" for {entry.subject}" if entry.subject else ""
    why = f": {entry.reason}" if entry.reason else ""
    seen = seen_in_words(entry.seen, schema, MOST_SEEN)
    return f"{entry.judgement.value}{about}{why}" + (f" ({seen})" if seen else "")


# ── commands ─────────────────────────────────────────────────────────────────────────────────────


async def _command(manager: Manager, owner: str, name: str) -> Explanation:
    try:
        record = await manager.store.command(name, owner)
    except EncampError as error:
        if error.code is not Code.USAGE:
            raise
        if error.sentence.startswith("Several"):
            raise
        raise _unknown(name) from error
    return Explanation(
        kind="command",
        id=record.id,
        name=record.name,
        state=record.state.value,
        reason=Reason(
            sentence=record.reason or f"it {IN_WORDS[record.state]}",
            since=record.changed,
            next=_next(manager, record),
        ),
        history=(f"{_at(record.issued)} {record.issuer} issued it to {record.host}",),
    )


def _next(manager: Manager, record: CommandRecord) -> str:
    if record.state in OVER:
        return ""
    state = manager.core.picture.hosts.get(record.host)
    if state is None or not joined(state.record):
        return f"it goes on when host {record.host} is back"
    if record.state is CommandState.WAITING:
        return "it is told to its host"
    return "its host tells how it ends"


def _unknown(name: str) -> EncampError:
    return EncampError(
        Code.USAGE,
        f"Nothing on this site that you may see is '{name[:64]}'.",
        "Name a job, machine, host, trigger or command: 'encamp jobs', 'encamp ps --site',"
        " 'encamp hosts', 'encamp trigger ls' and 'encamp command ls' list them.",
    )


def _at(moment: float) -> str:
    return datetime.fromtimestamp(moment, local_zone()).strftime("%Y-%m-%d %H:%M:%S")
