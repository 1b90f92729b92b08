"""Ending what a job has left running in a machine that stays for the next: a batch system ends all
processes of a job with it, wherever they are, and grants nothing to those that go on."""

from __future__ import annotations

import asyncio

from encamp.agent.copying import outcome
from encamp.guest.channel import Channel, Exec, Kind
from encamp.model.errors import EncampError
from encamp.model.job import User

SWEPT = 5.0
"""Seconds for it."""


async def sweep(channel: Channel, user: User) -> bool:
    """Kill all processes of the user's at once. False: it cannot be told that they are gone. Root's
    own cannot be told from the system's, and stay."""
    if user.uid == 0:
        return True
    words: list[str | bytes] = ["/bin/sh", "-c", "kill -9 -1"]
    try:
        async with asyncio.timeout(SWEPT):
            stream = channel.execute(Exec(args=words, cwd="/", uid=user.uid, gid=user.gid))
            stream.stdout.discard()
            await stream.end()
            # There may have been none: that is an error to it, and none here.
            return (await outcome(stream))[0].kind is Kind.EXITED
    except (EncampError, TimeoutError):
        return False
