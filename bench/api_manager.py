"""A manager with many machines and its HTTP API, in a process of its own.

It prints where it answers, and a token. Then it says what it is asked for on its standard input:
`cpu`: the seconds of the processor that it has used; `encode N`: the seconds that it takes to write
the list of its machines as JSON N times.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from encamp.bus.bus import Message
from encamp.bus.local import LocalHub
from encamp.bus.messages import Hello, encode
from encamp.door.questions import SiteMachine
from encamp.home import Home
from encamp.manager.daemon import Manager
from encamp.manager.store.store import Store
from encamp.model.machine import Machine, State
from encamp.model.site import MANAGER, Api, Site
from encamp.model.size import MIB, Size
from encamp.model.token import Scope

HOSTS, ON_EACH = 100, 100


def machine(host: int, number: int) -> Machine:
    """As they are: cloned, for one command each."""
    name = f"{host:04x}{number:04x}" * 4
    return Machine(
        id=name,
        name=f"brave-{host}-{number}",
        owner=1000 + number,
        host=f"node{host:03}",
        environment="debian12",
        image="sha256:" + name * 2,
        size=Size(2, 2048 * MIB),
        state=State.RUNNING,
        reason="its guest has answered",
        created=1.7e9 + number,
        changed=1.7e9 + number + 0.4,
        template=name[:16],
        command=("sh", "-c", "exec ./simulate --events 10000 --seed 4711"),
        variables={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
        workdir="/work",
    )


async def serve(home: Path) -> None:
    hub = LocalHub()
    site = Site(api=Api(listen="127.0.0.1:0", rate=1e6))
    manager = Manager(site, Home(home), home / "door", hub.participant, (), {}, {})
    ready = asyncio.Event()
    async with AsyncExitStack() as held:
        store = await held.enter_async_context(await Store.open("sqlite", Home(home).prepare()))
        running = asyncio.create_task(manager.run(store, ready.set))
        await asyncio.wait(
            {running, asyncio.create_task(ready.wait())}, return_when="FIRST_COMPLETED"
        )
        for host in range(HOSTS):
            await held.enter_async_context(_agent(hub, host))
        made = await manager.tokens.create("bench", Scope.READ, "", 3600, "bench")
        assert manager.api is not None
        print(manager.api.address, made.secret, flush=True)
        await _answer(manager)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _agent(hub: LocalHub, host: int) -> _Agent:
    return _Agent(hub, host)


class _Agent:
    """Says hello, with its machines, and takes everything."""

    def __init__(self, hub: LocalHub, host: int) -> None:
        self._name = f"node{host:03}"
        self._bus = hub.participant(self._name, (), self._take)
        self._hello = Hello(
            instance=self._name,
            home=self._name,
            version="1",
            time=time.time(),
            machines=tuple(machine(host, number) for number in range(ON_EACH)),
        )

    async def _take(self, message: Message) -> bytes | None:
        return None

    async def __aenter__(self) -> None:
        await self._bus.__aenter__()
        await self._bus.request(MANAGER, encode(self._hello))

    async def __aexit__(self, *nothing: object) -> None:
        await self._bus.__aexit__(None, None, None)


async def _answer(manager: Manager) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        match line.decode().split():
            case ["cpu"]:
                print(time.process_time(), flush=True)
            case ["encode", count]:
                print(_encode(manager, int(count)), flush=True)


def _encode(manager: Manager, count: int) -> float:
    listed = [
        SiteMachine(host=name, known=True, machine=one)
        for name, state in sorted(manager.core.picture.hosts.items())
        for one in state.machines.values()
    ]
    assert len(listed) == HOSTS * ON_EACH
    started = time.process_time()
    for _ in range(count):
        msgspec.json.encode(listed)
    return time.process_time() - started


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
