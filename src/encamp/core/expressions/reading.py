"""Questions about what a part reads."""

from __future__ import annotations

from collections.abc import Iterable

from encamp.core.expressions.aggregate import Aggregate
from encamp.core.expressions.part import AggregateRead, FactRead, Read, TimeRead


def is_timed(reads: Iterable[Read]) -> bool:
    """Does its value change as time goes by?"""
    return any(
        isinstance(read, TimeRead) or (isinstance(read, AggregateRead) and read.aggregate.timed)
        for read in reads
    )


def aggregates(reads: Iterable[Read]) -> dict[str, Aggregate]:
    """By identity: those that are equal are kept up to date as one."""
    return {
        read.aggregate.identity: read.aggregate for read in reads if isinstance(read, AggregateRead)
    }


def facts(reads: Iterable[Read]) -> list[FactRead]:
    return [read for read in reads if isinstance(read, FactRead)]
