"""A manager, and agents that are played: what they are told is looked at, and what they tell is
made up. What real agents do is tested with real ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from encamp.bus.bus import Bus, Message
from encamp.bus.local import LocalHub
from encamp.bus.messages import (
    Cancel,
    Claim,
    CommandNews,
    Execute,
    Hello,
    News,
    Release,
    Report,
    SayHello,
    Written,
    decode_from_manager,
    encode,
)
from encamp.core.happenings import TimePassed
from encamp.door.peer import Peer
from encamp.door.questions import Question, Submit
from encamp.home import Home
from encamp.manager.answering import answer
from encamp.manager.daemon import Manager
from encamp.manager.parts import EXEC, RUN
from encamp.manager.store.store import Store
from encamp.model.command import CommandDefinition, CommandState, Parameter
from encamp.model.errors import Code, EncampError
from encamp.model.job import Command, Job, MachineRequest, User
from encamp.model.machine import Machine, State
from encamp.model.meeting import Meeting
from encamp.model.property import PropertyDefinition, Reading, ValueKind
from encamp.model.request import PartResult, Request, RequestRecord, RequestState
from encamp.model.site import EVERYBODY, MANAGER, Site
from encamp.model.size import MIB, Size

ROOT = Peer(uid=0, gid=0, pid=1, user="root", groups=("root",))
ALICE = Peer(uid=12345, gid=12345, pid=1, user="alice", groups=("staff",))
BOB = Peer(uid=12346, gid=12346, pid=1, user="bob", groups=())

COMMANDS = (
    CommandDefinition(name="test.do"),
    CommandDefinition(
        name=RUN,
        parameters=(
            Parameter("request", ValueKind.DICT),
            Parameter("number", ValueKind.INT),
            Parameter("ticket"),
        ),
        internal=True,
    ),
    CommandDefinition(
        name=EXEC,
        parameters=(
            Parameter("machine"),
            Parameter("exec", ValueKind.DICT),
            Parameter("ticket"),
            Parameter("owner", required=False, default=""),
        ),
        internal=True,
    ),
    CommandDefinition(
        name="machine.remove",
        parameters=(
            Parameter("machine"),
            Parameter("force", ValueKind.BOOL),
            Parameter("owner", required=False, default=""),
        ),
    ),
)
PROPERTIES = tuple(
    PropertyDefinition(name=name, command="test", return_type=kind)
    for name, kind in (
        ("cpus", ValueKind.INT),
        ("memory_total", ValueKind.INT),
        ("disk_total", ValueKind.INT),
        ("disk_free", ValueKind.INT),
    )
)
READINGS = {
    "cpus": Reading(4, at=1.0),
    "memory_total": Reading(8192 * MIB, at=1.0),
    "disk_total": Reading(100_000 * MIB, at=1.0),
    "disk_free": Reading(100_000 * MIB, at=1.0),
}
MEETING = Meeting(address="127.0.0.1", port=7000, fingerprint="ab" * 32)

T = TypeVar("T")


async def until(true: Callable[[], T]) -> T:
    async with asyncio.timeout(60):
        while not (found := true()):
            await asyncio.sleep(0.005)
    return found


class PlayedAgent:
    def __init__(self, name: str, hub: LocalHub) -> None:
        self.name = name
        self.claims: dict[str, Claim] = {}
        self.released: list[str] = []
        self.told: dict[str, Execute] = {}
        self.executions: list[str] = []
        """Each time it was told, and told again."""
        self.cancelled: list[str] = []
        self.refusing: EncampError | None = None
        self.lapsed = False
        """Whether it has forgotten its claims when it is told to use them."""
        self.answering = asyncio.Event()
        """Whether it answers claims."""
        self.answering.set()
        self.hello: dict[str, Any] = {}
        self._hub = hub
        self._bus: Bus

    async def take(self, message: Message) -> bytes | None:
        match decode_from_manager(message.body):
            case Claim() as claim:
                await self.answering.wait()
                if self.refusing is not None:
                    raise self.refusing
                self.claims[claim.id] = claim
            case Release(id=id):
                self.claims.pop(id, None)
                self.released.append(id)
            case Written() as written:
                self.hello["written"] = written
            case Execute() as execute:
                self.hello["written"] = execute.written
                self.executions.append(execute.id)
                if self.lapsed:
                    raise EncampError(Code.NO_ROOM, "Its claim has expired.", transient=True)
                self.told.setdefault(execute.id, execute)
                self.claims.pop(execute.id, None)
            case Cancel(id=id):
                self.cancelled.append(id)
        return None

    @asynccontextmanager
    async def joined(self, *under_way: str) -> AsyncIterator[PlayedAgent]:
        async with self._hub.participant(self.name, (EVERYBODY,), self.take) as bus:
            self._bus = bus
            await self.say_hello(*under_way)
            yield self

    async def say_hello(self, *under_way: str) -> None:
        fields: dict[str, Any] = {
            "instance": self.name,
            "home": self.name,
            "version": "1",
            "time": time.time(),
            "commands": COMMANDS,
            "properties": PROPERTIES,
            "readings": READINGS,
            "under_way": under_way,
            "meeting": MEETING,
            **self.hello,
        }
        await self._bus.request(MANAGER, encode(Hello(**fields)))

    async def say(self, *news: CommandNews) -> None:
        await self._bus.request(MANAGER, encode(News(instance=self.name, commands=news)))

    async def report(self, *machines: Machine) -> None:
        report = Report(instance=self.name, machines=machines)
        await self._bus.request(MANAGER, encode(report))

    async def phase(self, command: str, phase: str, machine: str = "") -> None:
        state = CommandState.RUNNING
        await self.say(CommandNews(id=command, state=state, phase=phase, machine=machine))

    async def done(self, command: str, result: PartResult, phase: str = "running") -> None:
        value = msgspec.to_builtins(result)
        state = CommandState.DONE
        await self.say(
            CommandNews(id=command, state=state, value=value, started=1.0, ended=2.0, phase=phase)
        )

    async def command(self, number: int = 0) -> str:
        """The id of the command that it was told as the so-manieth."""
        await until(lambda: len(self.told) > number)
        return list(self.told)[number]


class Bench:
    """One manager after the other in the same home, until the test is over."""

    def __init__(self, path: Path, site: Site) -> None:
        self.path = path
        self.site = site
        self.hub = LocalHub()
        self.manager: Manager
        self.task: asyncio.Task[None]

    def agent(self, name: str = "node1") -> PlayedAgent:
        return PlayedAgent(name, self.hub)

    async def start(self) -> None:
        door = self.path / "manager.sock"
        self.manager = Manager(
            self.site, Home(self.path), door, self.hub.participant, PROPERTIES, {}, {}
        )
        ready = asyncio.Event()
        self.task = asyncio.create_task(self._run(ready))
        async with asyncio.timeout(60):
            await ready.wait()

    async def _run(self, ready: asyncio.Event) -> None:
        async with await Store.open(self.site.store, Home(self.path).prepare()) as store:
            await self.manager.run(store, ready.set)

    async def settle(self) -> None:
        """Everybody who will come is there."""
        self.manager.core.settled = True
        self.manager.happened(TimePassed())
        await self.manager.desk.successor.go_on()

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    async def answers(self, question: Question, peer: Peer = ALICE) -> list[Any]:
        return [item async for item in answer(self.manager, peer, question)]

    async def submit(self, peer: Peer = ALICE, **fields: Any) -> RequestRecord:
        [record] = await self.answers(Submit(request=request(**fields)), peer)
        assert isinstance(record, RequestRecord)
        return record

    async def stand(self, agent: PlayedAgent, **fields: Any) -> RequestRecord:
        """A machine that is wanted for itself, `m1`, and stands."""
        record = await self.submit(job=None, **fields)
        result = PartResult(machine="m1", standing=True)
        await agent.done(await agent.command(), result, "start")
        await agent.report(machine("m1"))
        return await self.until(record, RequestState.RUNNING)

    async def record(self, record: RequestRecord) -> RequestRecord:
        return await self.manager.desk.requests.look(record.request.id)

    async def until(self, record: RequestRecord, *states: RequestState) -> RequestRecord:
        async with asyncio.timeout(60):
            while (found := await self.record(record)).state not in states:
                await asyncio.sleep(0.005)
        return found


def request(**fields: Any) -> Request:
    """As somebody asks for it: what is the manager's to say is nonsense."""
    machine = MachineRequest("mini", User("eve", 0, 0, "root", (), "/root"))
    usual = Request(
        id="mine",
        owner="eve",
        submitted=-5.0,
        environment="mini",
        size=Size(99, 1),
        job=Job(machine, Command(("true",))),
        machine=machine,
    )
    return msgspec.structs.replace(usual, **fields)


def machine(id: str, state: State = State.RUNNING) -> Machine:
    return Machine(
        id=id,
        name=f"mini-{id}",
        owner=0,
        host="somewhere",
        environment="mini",
        image="0" * 64,
        size=Size(1, 128 * MIB),
        state=state,
        reason="it runs",
        created=1.0,
        changed=1.0,
    )


@asynccontextmanager
async def managed(path: Path, site: Site | None = None) -> AsyncIterator[Bench]:
    bench = Bench(path, site or Site())
    await bench.start()
    async with AsyncExitStack() as held:
        held.push_async_callback(bench.stop)
        yield bench


class HonestAgent(PlayedAgent):
    """Carries out what it is told, once, and tells it until it is heard, as agents do. What it has
    carried out outlives managers."""

    def __init__(self, name: str, hub: LocalHub) -> None:
        super().__init__(name, hub)
        self.ran: list[str] = []
        """The commands that were begun."""
        self.ends: dict[str, CommandNews] = {}
        """What was not heard yet."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, message: Message) -> bytes | None:
        said = decode_from_manager(message.body)
        if isinstance(said, SayHello):
            self._spawn(self._hello_again())
            return None
        await super().take(message)
        if isinstance(said, Execute) and said.id not in self.ran:
            self.ran.append(said.id)
            self.ends[said.id] = CommandNews(
                id=said.id,
                state=CommandState.DONE,
                started=1.0,
                ended=2.0,
                phase="running",
                machine="m1",
                value=msgspec.to_builtins(PartResult(machine="m1", exit_code=0, began=True)),
            )
            self._spawn(self._tell(said.id))
        return None

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hello_again(self) -> None:
        with suppress(EncampError):
            await self.say_hello(*self.ends)
            for command in list(self.ends):
                await self._tell(command)

    async def _tell(self, command: str) -> None:
        with suppress(EncampError):
            await self.phase(command, "running", "m1")
            await self.say(self.ends[command])
            self.ends.pop(command, None)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[HonestAgent]:
        async with self.joined():
            try:
                yield self
            finally:
                for task in list(self._tasks):
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
