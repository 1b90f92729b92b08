"""From a guest that answers to a machine that is ready for work: its context, then its tests.

Only for environments that ask for it: a machine that has neither is ready when its guest answers.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec

from encamp.agent.context import hand_over
from encamp.agent.live import Live
from encamp.agent.readiness import wait_until_ready
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.job import User
from encamp.progress import Progress


async def make_ready(
    live: Live,
    environment: Environment,
    owner: User,
    patience: float,
    progress: Progress,
    bundle: Path | None = None,
) -> str:
    """Hand the machine its context, once in its life, and test it until it is ready. What was
    done, in a few words. `patience`: the seconds that are left for all of it. `bundle`: the
    certificate authorities that it is to trust as well."""
    began = time.monotonic()
    done = []
    if environment.context.handed or bundle is not None:
        await _hand_over(live, environment, owner, patience, progress, bundle)
        done.append("context handed over")
    if environment.ready.tested:
        left = max(0.0, patience - (time.monotonic() - began))

        def tell(reason: str) -> None:
            _say(live, f"its guest answered, and it is tested until it is ready: {reason}")
            progress.update(f"waiting until '{environment.name}' is ready: {reason}")

        await wait_until_ready(live.channel, live.machine, environment, left, tell)
        done.append("ready")
    return ", ".join(done)


async def _hand_over(
    live: Live,
    environment: Environment,
    owner: User,
    patience: float,
    progress: Progress,
    bundle: Path | None,
) -> None:
    doing = "nothing yet"
    handed: tuple[str, ...] = ()

    def tell(step: str) -> None:
        nonlocal doing
        doing = step
        _say(live, f"its guest answered, and it is handed its context: {step}")
        progress.update(f"handing '{environment.name}' its context: {step}")

    try:
        async with asyncio.timeout(patience):
            if bundle is not None:
                from encamp.agent import authorities

                tell("certificate authorities")
                handed = await authorities.hand_over(
                    live.channel, live.machine, environment, bundle
                )
            handed += await hand_over(live.channel, live.machine, environment, owner, tell)
    except TimeoutError:
        raise EncampError(
            Code.NOT_READY,
            f"Environment '{environment.name}' was not ready after {environment.ready.timeout:g} s:"
            f" it was still being handed its context: {doing}.",
            "A command that starts a service must end: put '&' behind it. 'ready.timeout' gives"
            " all of it more time.",
        ) from None
    live.record(msgspec.structs.replace(live.machine, handed=handed))


def _say(live: Live, reason: str) -> None:
    """In the machine's record, for whoever looks at it while it is not ready."""
    live.record(msgspec.structs.replace(live.machine, reason=reason))
