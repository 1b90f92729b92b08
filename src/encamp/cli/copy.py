"""`encamp copy`: files in and out of a machine that is running."""

from __future__ import annotations

import asyncio
from pathlib import Path

from encamp.agent.copying import Copied, copy_in, copy_out
from encamp.agent.keeper import Keeper
from encamp.cli.cleaning import remark
from encamp.cli.options import caller, split
from encamp.cli.site_door import site_door
from encamp.cli.site_exec import copy_through_site, is_here
from encamp.home import default_home
from encamp.model.errors import Code, EncampError
from encamp.model.job import Copy, Outcome


def copy_files(source: str, target: str) -> int:
    machine, inputs, outputs = _parsed(split(source, "SRC"), split(target, "DST"))
    for copy in inputs:
        if not Path(copy.source).exists():
            raise EncampError(
                Code.INPUT_MISSING,
                f"Cannot copy {copy.source} into machine {machine}: it does not exist.",
                "SRC is a file or directory of this host; one in a machine is MACHINE:PATH.",
            )
    door = site_door()
    copied: Copied | Outcome
    if door is not None and not is_here(machine):
        copied = copy_through_site(door, machine, inputs, outputs)
    else:
        copied = asyncio.run(_copy_here(machine, inputs, outputs))
    for pattern in copied.missing:
        remark(f"{pattern}: nothing in the machine matches.")
    for problem in copied.problems:
        remark(problem)
    return Code.COPY_FAILED.value if copied.missing or copied.problems else 0


Copies = tuple[Copy, ...]


def _parsed(source: list[str], target: list[str]) -> tuple[str, Copies, Copies]:
    """The machine, and what is to be copied in or out."""
    if [len(source), len(target)] not in ([1, 2], [2, 1]):
        raise EncampError(
            Code.USAGE,
            "One of SRC and DST must be MACHINE:PATH, and only one.",
            "For example: encamp copy data work:/tmp; a colon in a name is written '\\:'.",
        )
    if len(target) == 2:
        return target[0], (Copy(source[0], target[1] or None),), ()
    if not source[1]:
        raise EncampError(Code.USAGE, f"Which file of machine {source[0]}?", "Write MACHINE:PATH.")
    return source[0], (), (Copy(source[1], target[0]),)


async def _copy_here(machine: str, inputs: Copies, outputs: Copies) -> Copied:
    keeper = Keeper.open(default_home())
    user = caller()
    found = keeper.journal.find(machine)
    async with keeper.speak(found) as (_, channel):
        copied = await copy_in(channel, found, inputs, user.home, user)
        copied.join(await copy_out(channel, outputs, user.home, user))
    return copied
