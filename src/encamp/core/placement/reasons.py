"""Why a request waits, in a word and in a sentence."""

from __future__ import annotations

from collections.abc import Mapping

from encamp.core.placement.verdicts import Verdict
from encamp.core.placement.view import View
from encamp.model.request import Cause
from encamp.model.size import Size, format_bytes

MOST_NAMED = 1000
"""Hosts among which a single one is looked up to be named."""

_FULL = (Verdict.NO_CPUS, Verdict.NO_MEMORY, Verdict.NO_DISK, Verdict.OPEN)

NEXT = {
    Cause.NO_HOSTS: "It is placed as soon as a host joins that fits.",
    Cause.NO_HOST_FITS: "It waits for a larger host to join; ask for less, or cancel it.",
    Cause.NO_ROOM: "It is placed as soon as enough machines have ended.",
    Cause.LIMIT: "It is placed as soon as machines that count against the limit have ended.",
    Cause.LEFT_ALONE: "The hosts are tried again with one machine each, after a pause.",
    Cause.REQUIREMENTS: "It is placed as soon as a host meets its requirements;"
    " --wait-at-most limits how long it waits.",
    Cause.ENVIRONMENT: "It waits for a host to join that can make its machines.",
    Cause.NEIGHBOURS: "It is placed as soon as those machines are there, or gone.",
    Cause.BEHIND: "It is placed when those before it are, and there is room.",
    Cause.ABSENT: "It is placed as soon as a host joins that fits.",
}


def cause_of(view: View) -> Cause:
    """Why none of the hosts will do: what is nearest to doing."""
    counts = view.counts
    if view.broken:
        return Cause.REQUIREMENTS
    for verdict in _FULL:
        if counts.get(verdict):
            return Cause.NO_ROOM
    for verdict in _NEAREST:
        if counts.get(verdict):
            cause = verdict.value.cause
            return Cause.NO_HOSTS if cause is Cause.ABSENT else cause
    return Cause.NO_HOSTS


_NEAREST = (
    Verdict.SPARED,
    Verdict.TRIED,
    Verdict.DOUBTED,
    Verdict.NOT_NEAR,
    Verdict.NOT_AWAY,
    Verdict.UNMET,
    Verdict.UNKNOWN,
    Verdict.FEW_CPUS,
    Verdict.LITTLE_MEMORY,
    Verdict.SMALL_DISK,
    Verdict.SILENT,
    Verdict.NOT_FOR_OWNER,
    Verdict.TAKES_NONE,
    Verdict.ABSENT,
)


def words_for(view: View) -> dict[str, str]:
    """What stands in for the names in a verdict's sentences."""
    shape = view.shape
    return {**_size_words(shape.size), **_other_words(view)}


def _size_words(size: Size) -> dict[str, str]:
    return {
        "cpus": "1 processor" if size.cpus == 1 else f"{size.cpus} processors",
        "memory": format_bytes(size.memory),
        "disk": format_bytes(size.disk),
    }


def _other_words(view: View) -> dict[str, str]:
    shape = view.shape
    return {
        "requirements": shape.requirements,
        "environment": shape.environment,
        "near": " and ".join(shape.near),
        "away": " or ".join(shape.away),
    }


def sentence_of(view: View, more: Mapping[str, int]) -> str:
    """Counts of hosts and what is said of them. `more`: what else is in the way, of open ones."""
    if view.broken:
        return f"its expressions make no sense on this site: {view.broken}"
    if not any(view.counts.values()):
        return "no host has joined"
    words = words_for(view)
    left_open = view.counts.get(Verdict.OPEN, 0)
    parts = [_counted(count, *what.split("|")) for what, count in more.items() if count]
    named = view.verdicts if len(view.verdicts) <= MOST_NAMED else {}
    left_open -= sum(more.values())
    if left_open > 0:
        parts.append(
            _counted(left_open, "has room for some of it only", "have room for some of it")
        )
    for verdict in (*_FULL[:3], *_NEAREST):
        count = view.counts.get(verdict, 0)
        if count:
            meaning = verdict.value
            parts.append(
                _counted(
                    count,
                    meaning.one.format(**words),
                    meaning.several.format(**words),
                    next((name for name, known in named.items() if known is verdict), ""),
                )
            )
    return ", ".join(parts)


def _counted(count: int, one: str, several: str, name: str = "") -> str:
    """`name`: of the host, if it is only one."""
    return f"{name or '1 host'} {one}" if count == 1 else f"{count} hosts {several}"


def listed(hosts: list[str]) -> str:
    names = list(dict.fromkeys(hosts))
    if len(names) <= 3:
        return ", ".join(names)
    return f"{names[0]}, {names[1]} and {len(names) - 2} others"
