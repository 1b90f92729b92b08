"""Failures of an environment in a row, and whose affair they are: the environment's or the host's,
or that of one owner, who can kill and stop the processes of his own machines.

Nobody but that owner is left alone for what failed for one owner only. Before others are, the agent
makes a machine of the environment itself, which no owner can disturb. Failures of two owners need
no such trial, unless their machines were killed; nor does what is the host's own fault.
What is everybody's affair the agent goes on trying until the pause is over: the first machine that
comes up ends it.
"""

from __future__ import annotations

import msgspec

from encamp.agent.bait.errand import OF_THE_HOST, Fault
from encamp.model.batch import BatchSettings

MOST_OWNERS = 8
"""Owners of a row that are remembered: two are enough to tell that it is not one alone."""
LONGEST_REASON = 500
TRIALS = 5
"""How often in a pause the agent tries what fails for everybody."""


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known of one environment."""

    failures: int = 0
    """In a row."""
    first: float = 0.0
    last: float = 0.0
    until: float = 0.0
    """Those concerned are not to try it before this."""
    reason: str = ""
    """Of the last."""
    owners: dict[int, int] = msgspec.field(default_factory=dict)
    """Whose jobs they were, and how many of each."""
    sure: tuple[int, ...] = ()
    """Those of them whose machines were not killed by a signal."""
    others: bool = False
    """Has a machine of another environment come up here since the first of them?"""
    tried: float = 0.0
    """When the agent, or somebody for whom it came up, has last tried it."""
    confirmed: bool = False
    """The agent's own machine did not come up either, or it could not get the image."""
    alone: dict[int, float] = msgspec.field(default_factory=dict)
    """Owners whose own affair it was, and until when they are left alone."""


# ── what happens ─────────────────────────────────────────────────────────────────────────────────


def failed(
    row: Row,
    reason: str,
    owner: int,
    settings: BatchSettings,
    now: float,
    fault: Fault = Fault.UNCLEAR,
) -> Row:
    alone = _recent(row.alone, settings, now)
    reason = reason[:LONGEST_REASON]
    if owner in alone:
        alone[owner] = now + settings.pause
        return msgspec.structs.replace(row, last=now, reason=reason, alone=alone)
    owners, sure, confirmed = dict(row.owners), row.sure, row.confirmed
    if row.failures >= settings.failures and not is_paused(row, settings, now):
        # Whose affair it is now is found out anew.
        owners = {owner: owners[owner]} if owner in owners else {}
        sure, confirmed = (), False
    if owner in owners or len(owners) < MOST_OWNERS:
        owners[owner] = owners.get(owner, 0) + 1
        if fault is not Fault.KILLED and owner not in sure:
            sure = (*sure, owner)
    failures = row.failures + 1
    return msgspec.structs.replace(
        row,
        failures=failures,
        first=row.first if row.failures else now,
        last=now,
        until=now + settings.pause if failures >= settings.failures else row.until,
        reason=reason,
        owners=owners,
        sure=sure,
        confirmed=confirmed or fault in OF_THE_HOST,
        alone=alone,
    )


def came_up(row: Row, owner: int, settings: BatchSettings, now: float) -> Row | None:
    """A machine of an owner's answered, which ends the row. None: nothing is left to remember."""
    if is_paused(row, settings, now) and not is_everybodys(row) and owner not in row.owners:
        # That is as good as a trial of the agent's own.
        row = cleared(row, settings, now)
    alone = _recent(row.alone, settings, now)
    alone.pop(owner, None)
    if not alone and not _is_fresh(row, settings, now):
        return None
    return Row(last=row.last, reason=row.reason, tried=row.tried, alone=alone)


def cleared(row: Row, settings: BatchSettings, now: float) -> Row:
    """The agent's own machine came up: it is over, or those who failed so often did for reasons of
    their own."""
    alone = _recent(row.alone, settings, now)
    if not is_everybodys(row):
        bound = settings.failures
        alone |= {owner: row.until for owner, count in row.owners.items() if count >= bound}
    return Row(last=row.last, reason=row.reason, tried=now, alone=alone)


def confirmed(row: Row, reason: str, settings: BatchSettings, now: float) -> Row:
    """The agent's own machine did not come up either. That prolongs no pause of everybody's: it
    would be tried for ever, also when no job asks for it any more."""
    known = is_everybodys(row) and is_paused(row, settings, now)
    return msgspec.structs.replace(
        row,
        failures=max(row.failures, settings.failures),
        until=row.until if known else now + settings.pause,
        reason=reason[:LONGEST_REASON],
        tried=now,
        confirmed=True,
        alone={},
    )


# ── what follows ─────────────────────────────────────────────────────────────────────────────────


def is_paused(row: Row, settings: BatchSettings, now: float) -> bool:
    """Not for longer than a pause lasts, wherever the clock has been set meanwhile."""
    return _lasts(row.until, settings, now)


def is_everybodys(row: Row) -> bool:
    """Is it certain that others would fail, too?"""
    return row.confirmed or len(row.sure) > 1


def is_left_alone(row: Row, owner: int, settings: BatchSettings, now: float) -> bool:
    """Is this owner not to try it?"""
    if _lasts(row.alone.get(owner, 0.0), settings, now):
        return True
    concerned = is_everybodys(row) or row.owners.get(owner, 0) >= settings.failures
    return concerned and is_paused(row, settings, now)


def is_to_be_tried(row: Row, settings: BatchSettings, now: float) -> bool:
    """Has the agent to find out whose affair it is, or whether it is over?"""
    if is_paused(row, settings, now) and is_everybodys(row):
        return not _was_just(max(row.tried, row.last), settings.pause / TRIALS, now)
    suspected = any(_lasts(until, settings, now) for until in row.alone.values())
    suspected |= is_paused(row, settings, now)
    return suspected and not _is_fresh(row, settings, now)


def closes_bait(row: Row, settings: BatchSettings, now: float) -> bool:
    """Is the host to be left alone altogether? Not as long as machines of other environments come
    up."""
    return is_everybodys(row) and not row.others and is_paused(row, settings, now)


def _lasts(until: float, settings: BatchSettings, now: float) -> bool:
    return now < until <= now + settings.pause


def _is_fresh(row: Row, settings: BatchSettings, now: float) -> bool:
    """Was it tried just now?"""
    return row.tried > 0 and _was_just(row.tried, settings.pause, now)


def _was_just(moment: float, seconds: float, now: float) -> bool:
    return now - seconds < moment <= now


def _recent(alone: dict[int, float], settings: BatchSettings, now: float) -> dict[int, float]:
    """For so long after a pause one more failure is enough for the next."""
    return {owner: until for owner, until in alone.items() if now < until + settings.pause}
