"""Reads properties, each on its tick or when asked, and tells what has changed.

Nothing here waits for a plug-in longer than its definition allows, and nobody waits for another's:
what fails, hangs or returns nonsense gives an error value with the reason.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeGuard

from encamp.agent.properties.checking import checked
from encamp.agent.properties.finding import Plugins
from encamp.agent.properties.plugin import Asked
from encamp.agent.properties.reasons import reason
from encamp.agent.properties.threads import THREADS, Call
from encamp.home import Home, default_home
from encamp.model.property import PropertyDefinition, Reading, Value

FIRST = 2.0
"""Seconds in which everything is read for the first time, one after the other."""
GRACE = 1.0
"""Seconds that a reading which was given up has to clean up after itself."""


class _Slot:
    """A property and all that is known about reading it."""

    def __init__(self, definition: PropertyDefinition, home: Home) -> None:
        self.definition = definition
        self.asked = Asked(definition, home)
        self.due = float("inf")
        """When it is read next, by the loop's clock."""
        self.told: Reading | None = None
        """What was told last."""
        self.reading: asyncio.Task[Reading] | None = None
        """The reading under way, which all who ask meanwhile share."""
        self.attempt: asyncio.Task[Reading] | None = None
        """What it waits for; given up, perhaps, but not at its end."""
        self.call: Call | None = None
        """The attempt's call in a thread, which cannot be ended from here."""

    @property
    def is_being_read(self) -> bool:
        return self.reading is not None and not self.reading.done()

    @property
    def stuck(self) -> bool:
        """Is an earlier attempt that was given up still at it?"""
        attempt, call = self.attempt, self.call
        return (attempt is not None and not attempt.done()) or (call is not None and not call.ended)

    async def in_thread(self, function: Callable[[], Any]) -> Any:
        """What the function returns; what it raises becomes a reading without a value, there in
        the thread, so that nothing large hangs on to an exception."""

        def call() -> Any:
            try:
                return function()
            except BaseException as error:
                return _failed(reason(error))

        self.call = THREADS.begin(call)
        return await THREADS.finish(self.call)

    def give_up(self) -> None:
        """Wait no longer. A thread cannot be ended, and is not called again until it returns."""
        if self.attempt is not None and not self.attempt.done() and not self.attempt.cancelling():
            self.attempt.cancel()

    def differs(self, reading: Reading) -> bool:
        """Is this worth telling?"""
        told = self.told
        if told is None or told.error != reading.error:
            return True
        return not same(told.value, reading.value, self.definition.tolerance)


def same(one: Value, other: Value, tolerance: float) -> bool:
    """Is it the same value, as far as anybody wants to know?"""
    if _is_number(one) and _is_number(other):
        return bool(abs(one - other) <= tolerance)
    return type(one) is type(other) and one == other


def _is_number(value: Value) -> TypeGuard[int | float]:
    return type(value) in (int, float)


class Reader:
    """The properties of one agent.

    `changed` is called in the event loop, with what differs from what was told before: by more
    than its tolerance, or in its error. What `read` returns counts as told.
    """

    def __init__(
        self,
        definitions: Iterable[PropertyDefinition],
        plugins: Plugins,
        *,
        changed: Callable[[dict[str, Reading]], None],
        home: Home | None = None,
    ) -> None:
        self._plugins = plugins
        self._changed = changed
        self._home = home or default_home()
        self._slots: dict[str, _Slot] = {}
        self._woken = asyncio.Event()
        self._running = False
        self.replace(definitions)

    @property
    def definitions(self) -> tuple[PropertyDefinition, ...]:
        return tuple(slot.definition for slot in self._slots.values())

    def current(self) -> dict[str, Reading]:
        """What was told last about each property that has been read."""
        return {name: slot.told for name, slot in self._slots.items() if slot.told is not None}

    def replace(self, definitions: Iterable[PropertyDefinition]) -> None:
        """Read these from now on. What is known of those that stay as they are is kept."""
        before, self._slots = self._slots, {}
        for definition in definitions:
            old = before.pop(definition.name, None)
            if old is not None and old.definition == definition:
                self._slots[definition.name] = old
                continue
            slot = self._slots[definition.name] = _Slot(definition, self._home)
            if old is not None:
                # A thread that hangs is not joined by another because of a new definition.
                slot.attempt, slot.call = old.attempt, old.call
                old.give_up()
        for old in before.values():
            old.give_up()
        if self._running:
            self._plan(slot for slot in self._slots.values() if slot.due == float("inf"))
            self._woken.set()

    @property
    def ticking(self) -> tuple[str, ...]:
        """Those that are read without being asked for."""
        return tuple(name for name, slot in self._slots.items() if slot.definition.ticks > 0)

    async def read(self, names: Collection[str] = ()) -> dict[str, Reading]:
        """Read these properties now, or all of them, at once; the slowest decides how long it
        takes, at most its timeout."""
        slots = {name: self._slots.get(name) for name in names or tuple(self._slots)}
        found = [slot for slot in slots.values() if slot is not None]
        fresh = await asyncio.gather(*map(self._fresh, found))
        for slot, reading in zip(found, fresh, strict=True):
            slot.told = reading
        unknown = _failed("There is no such property on this host.")
        read = dict(zip((slot.definition.name for slot in found), fresh, strict=True))
        return {name: read.get(name, unknown) for name in slots}

    async def run(self) -> None:
        """Read each property on its tick, until cancelled."""
        self._plan(self._slots.values())
        self._running = True
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._wait()
                    now = asyncio.get_running_loop().time()
                    for slot in self._slots.values():
                        if slot.due <= now:
                            ticks = slot.definition.ticks
                            slot.due = max(slot.due + ticks, now + ticks / 2)
                            if not slot.is_being_read:
                                group.create_task(self._tick(slot))
        finally:
            self._running = False
            await self.close()

    async def close(self) -> None:
        """End what is being read. Threads that hang are left behind; they end with the process."""
        slots = tuple(self._slots.values())
        for slot in slots:
            slot.give_up()
        tasks = {task for slot in slots for task in (slot.reading, slot.attempt) if task}
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=GRACE)
            for task in left:
                task.cancel()
                # A plug-in that will not be ended does not keep the daemon from its end.
                asyncio._unregister_task(task)

    # ── ticks ────────────────────────────────────────────────────────────────────────────────────

    def _plan(self, slots: Iterable[_Slot]) -> None:
        """When each is read first: not all at once, and not with those of other agents."""
        now = asyncio.get_running_loop().time()
        ticking = [slot for slot in slots if slot.definition.ticks > 0]
        for place, slot in enumerate(ticking):
            if slot.told is None:
                slot.due = now + min(FIRST, slot.definition.ticks) * place / len(ticking)
            else:
                slot.due = now + random.uniform(0, slot.definition.ticks)

    async def _wait(self) -> None:
        """Until something is due, or the definitions have changed."""
        due = min((slot.due for slot in self._slots.values()), default=float("inf"))
        rest = max(0.0, due - asyncio.get_running_loop().time())
        try:
            async with asyncio.timeout(None if rest == float("inf") else rest):
                await self._woken.wait()
        except TimeoutError:
            return
        self._woken.clear()

    async def _tick(self, slot: _Slot) -> None:
        name = slot.definition.name
        reading = await self._fresh(slot)
        if self._slots.get(name) is slot and slot.differs(reading):
            slot.told = reading
            self._changed({name: reading})

    # ── one reading ──────────────────────────────────────────────────────────────────────────────

    async def _fresh(self, slot: _Slot) -> Reading:
        """What is read now, by one reading for all who ask for it."""
        if slot.reading is None or slot.reading.done():
            slot.reading = asyncio.create_task(self._reading(slot))
        return await asyncio.shield(slot.reading)

    async def _reading(self, slot: _Slot) -> Reading:
        definition = slot.definition
        silent = f"'{definition.command}' has not answered for {definition.timeout:g} s."
        if slot.attempt is not None and not slot.attempt.done():
            await asyncio.wait({slot.attempt}, timeout=GRACE)
        if slot.stuck:
            return _failed(silent)
        attempt = slot.attempt = asyncio.create_task(self._attempt(slot))
        await asyncio.wait({attempt}, timeout=definition.timeout)
        if not attempt.done():
            slot.give_up()
            await asyncio.wait({attempt}, timeout=GRACE)
            return _failed(silent)
        if attempt.cancelled():
            return _failed(f"'{definition.command}' was interrupted.")
        return attempt.result()

    async def _attempt(self, slot: _Slot) -> Reading:
        """Have the plug-in called: in a thread, unless it says that it does not need one."""
        asked = slot.asked
        command = asked.definition.command
        try:
            plugin = self._plugins.loaded(command)
            if plugin is None:
                plugin = await slot.in_thread(lambda: self._plugins.load(command))
                if isinstance(plugin, Reading):
                    return plugin
            if inspect.iscoroutinefunction(plugin):
                return _succeeded(asked, await plugin(asked))
            reading: Reading = await slot.in_thread(lambda: _succeeded(asked, plugin(asked)))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # Also what would end the agent: a plug-in is not to decide that.
            return _failed(reason(error))
        return reading


def _succeeded(asked: Asked, value: Any) -> Reading:
    """A reading of this value, if it is what was asked for."""
    return Reading(value=checked(value, asked.kind), at=time.time())


def _failed(error: str) -> Reading:
    return Reading(error=error, at=time.time())
