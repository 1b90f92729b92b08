"""`encamp copy`: files in and out of a machine that is running."""

from __future__ import annotations

import asyncio

from encamp.agent.copying import Copied, check_inputs, copy_in, copy_out
from encamp.agent.keeper import Keeper
from encamp.cli.cleaning import remark
from encamp.cli.options import caller, split
from encamp.home import default_home
from encamp.model.errors import Code, EncampError
from encamp.model.job import Copy


def copy_here(source: str, target: str) -> int:
    copied = asyncio.run(_copy(split(source, "SRC"), split(target, "DST")))
    for pattern in copied.missing:
        remark(f"{pattern}: nothing in the machine matches.")
    for problem in copied.problems:
        remark(problem)
    return Code.COPY_FAILED.value if copied.missing or copied.problems else 0


async def _copy(source: list[str], target: list[str]) -> Copied:
    if [len(source), len(target)] not in ([1, 2], [2, 1]):
        raise EncampError(
            Code.USAGE,
            "One of SRC and DST must be MACHINE:PATH, and only one.",
            "For example: encamp copy data work:/tmp; a colon in a name is written '\\:'.",
        )
    keeper = Keeper.open(default_home())
    user = caller()
    if len(target) == 2:
        inward = (Copy(source[0], target[1] or None),)
        check_inputs(inward)
        async with keeper.speak(keeper.journal.find(target[0])) as (_, channel):
            return await copy_in(channel, inward, user.home, user)
    if not source[1]:
        raise EncampError(Code.USAGE, f"Which file of machine {source[0]}?", "Write MACHINE:PATH.")
    async with keeper.speak(keeper.journal.find(source[0])) as (_, channel):
        return await copy_out(channel, (Copy(source[1], target[0]),), user.home, user)
