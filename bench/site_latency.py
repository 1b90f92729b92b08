"""How long it takes from a change on a host until the command that it calls for is begun there."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from pathlib import Path

from bench.bare_bus import SUBJECT, bare_bus
from bench.ground import Ground
from bench.measure import Series, ratio, rounds, stopwatch
from bench.report import Figure, Report
from bench.site import Running, enrol, name_of, site
from encamp import __version__
from encamp.agent.conversation import Conversation
from encamp.bus.messages import Claim, CommandNews, Execute, Hello, JobsWanted
from encamp.bus.opening import open_bus
from encamp.describe.site_file import load_site
from encamp.model.batch_record import BatchRecord
from encamp.model.command import CommandDefinition, CommandState
from encamp.model.machine import Machine
from encamp.model.property import PropertyDefinition, Reading, ValueKind
from encamp.model.site import EVERYBODY

TITLE = "from a change on a host to the command it calls for"

EXPLANATION = """
A host's property changes and its agent tells the manager; a trigger has become true by that; its
command is written to the store and sent; the agent has it in its hands, about to write it down and
begin. The time from the one moment to the other is taken in the agent's process. Between them are
two requests over NATS, one each way, with credentials and permissions, the judging of the trigger,
and one transaction of SQLite that waits for the disk; a *synced write* of 4 KiB to the same file
system is beside it. The *round trip* is one request and its answer between two bare NATS clients in
two processes, with a server of their own. All are measured in turns.

When a change is noticed at all depends on the property's `ticks`, which is not part of it.
"""

LEVEL = PropertyDefinition(name="level", command="level", return_type=ValueKind.INT, ticks=0)
REACT = CommandDefinition(name="react")
TRIGGER = """\
react:
  when: host.level % 2 == 1
  do: send(host, 'react')
  repeats: 0
"""
"""To the manager, a level that changes right after the command looks like its effect."""
PATIENCE = 20.0


class Switch:
    """A host whose only property is a level, and whose only command notes when it came."""

    def __init__(self) -> None:
        self.instance = uuid.uuid4().hex
        self.level = 0
        self.begun = asyncio.Event()
        self._over: list[CommandNews] = []

    def hello(self) -> Hello:
        return Hello(
            instance=self.instance,
            home="switch",
            version=__version__,
            time=time.time(),
            properties=(LEVEL,),
            commands=(REACT,),
        )

    def readings(self) -> dict[str, Reading]:
        return {LEVEL.name: Reading(self.level, at=time.time())}

    async def jobs(self, wanted: JobsWanted) -> tuple[BatchRecord, ...]:
        return ()

    async def read(self, properties: tuple[str, ...]) -> dict[str, Reading]:
        return self.readings()

    def machines(self) -> tuple[Machine, ...]:
        return ()

    async def look(self) -> bool:
        return False

    async def execute(self, message: Execute) -> None:
        self.begun.set()
        self._over.append(CommandNews(id=message.id, state=CommandState.DONE))

    async def cancel(self, command_id: str) -> None: ...

    async def claim(self, message: Claim) -> None: ...

    def release(self, claim_id: str) -> None: ...

    def news(self) -> tuple[CommandNews, ...]:
        return tuple(self._over)

    def taken(self, outputs: dict[str, int], told: tuple[CommandNews, ...]) -> None:
        del self._over[: len(told)]

    def start_again(self) -> None: ...


def measure(ground: Ground, *, quick: bool) -> Report:
    reaction = Series("change to command", "ms")
    round_trip = Series("round trip of bare NATS", "ms")
    write = Series("synced write of 4 KiB", "ms")
    enrolled = enrol(ground.scratch / "config", 1)
    (enrolled.config / "triggers.yaml").write_text(TRIGGER)
    with site(ground.scratch / "site", enrolled) as running:
        os.environ |= running.environment
        count = 10 if quick else 300
        asyncio.run(_react(ground.scratch, running, count, reaction, round_trip, write))
    return Report(
        figures=[
            Figure("change to command / round trip of bare NATS", ratio(reaction, round_trip)),
            Figure("change to command", reaction.median, "ms"),
        ],
        background=[reaction, round_trip, write],
    )


async def _react(
    scratch: Path,
    running: Running,
    count: int,
    reaction: Series,
    round_trip: Series,
    write: Series,
) -> None:
    described = load_site()
    assert described is not None
    switch = Switch()
    conversation = Conversation(name_of(0), switch.instance, switch)
    async with (
        bare_bus(scratch / "bare") as bare,
        open_bus(described, name_of(0), (EVERYBODY,), conversation.take) as bus,
    ):
        conversing = asyncio.create_task(conversation.run(bus))
        try:
            await _known(running, switch.level)
            for _ in rounds("site_latency", count):
                with stopwatch(reaction):
                    _change(switch, conversation)
                    async with asyncio.timeout(PATIENCE):
                        await switch.begun.wait()
                # The level is even again, and the manager knows that before it is odd once more.
                _change(switch, conversation)
                await _known(running, switch.level)
                with stopwatch(round_trip):
                    await bare.request(SUBJECT, b"x" * 100, timeout=PATIENCE)
                with stopwatch(write):
                    _write(scratch / "synced")
        finally:
            conversing.cancel()
            await asyncio.gather(conversing, return_exceptions=True)


def _change(switch: Switch, conversation: Conversation) -> None:
    switch.level += 1
    switch.begun.clear()
    conversation.teller.readings(switch.readings())


async def _known(running: Running, level: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while running.reading(name_of(0), LEVEL.name) != level:
            await asyncio.sleep(0.05)


def _write(path: Path) -> None:
    with path.open("wb") as file:
        file.write(bytes(4096))
        file.flush()
        os.fsync(file.fileno())
