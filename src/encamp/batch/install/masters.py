"""Which host is the master of a Grid Engine cell, and which could become it: the script that looks
at every job is run there."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from encamp.batch.gridengine.calls import Calls
from encamp.model.errors import Code, EncampError


class Masters(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    """The master's, as the cell has it; empty: it does not say."""
    here: bool = True
    """Is it this host?"""
    shadows: tuple[str, ...] = ()
    """Others that take over from it."""


def masters(surroundings: Mapping[str, str]) -> Masters:
    """Of the cell that SGE_ROOT and SGE_CELL name."""
    calls = Calls(
        {"root": surroundings.get("SGE_ROOT", ""), "cell": surroundings.get("SGE_CELL", "")}
    )
    common = Path(calls.root) / calls.cell / "common"
    name = next(iter(_words(common / "act_qmaster")), "")
    return Masters(
        name=name,
        here=not name or is_same(name, calls.host) or _is_address_of_ours(name),
        shadows=tuple(each for each in _words(common / "shadow_masters") if each != name),
    )


def is_same(one: str, other: str) -> bool:
    """Do two names mean one host? A domain counts if both have one."""
    first, second = one.lower().rstrip("."), other.lower().rstrip(".")
    if "." in first and "." in second:
        return first == second
    return first.partition(".")[0] == second.partition(".")[0]


def refuse_unseen(found: Masters, prefix: str) -> None:
    """The master would refuse every job of the cell if it did not find the script."""
    if not found.here:
        raise EncampError(
            Code.WRONG_STATE,
            f"This host is not the master of Grid Engine, which is {found.name}: it would look for"
            f" what is put into {prefix} there, and refuse every job.",
            f"Run this on {found.name}. If {prefix} is the same directory there, say --shared; else"
            " choose one that is with --prefix. For a host that only runs jobs, say --node.",
        )


def left_to_shadows(found: Masters, files: Sequence[str]) -> list[str]:
    if not found.shadows:
        return []
    sentence = f"A shadow master that takes over ({', '.join(found.shadows)}) needs"
    return [f"{sentence} {' and '.join(files)}, too: copy them, also after a change of rules."]


def _words(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text(errors="replace").split()
    return []


def _is_address_of_ours(name: str) -> bool:
    """It may have several names; only on the host that has it can an address be taken."""
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)
                return True
    return False
