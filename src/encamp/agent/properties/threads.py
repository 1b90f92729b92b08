"""Threads for plug-ins that wait: few, shared by all readers of a process, and none waited for.

Usually one thread serves all. A call that finds it busy for a moment gets another, so whoever is
slow delays nobody. One that never returns keeps its thread, and does not keep the process from
ending, as those of `concurrent.futures` would.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

MOMENT = 0.05
"""Seconds that a call waits for a busy thread before it gets one of its own."""
NAME = "encamp-property"
IDLE = 30.0
"""Seconds after which a thread without work ends."""


class Call:
    """One call of a function in a thread. The function returns whatever happens: what it could
    raise is for it to make a value of."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.begun = False
        self.ended = False
        """Has the function returned, or will it never be called? Until then a thread is taken."""

    def carry_out(self) -> None:
        if self.future.cancelled():
            self.ended = True
            return
        self.begun = True
        result = self.function()
        # Before it is told: whoever hears of it may call again at once.
        self.ended = True
        with suppress(RuntimeError):  # The loop may be closed by now.
            self.loop.call_soon_threadsafe(self._tell, result)

    def _tell(self, result: Any) -> None:
        if not self.future.done():
            self.future.set_result(result)


class Threads:
    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0
        self._idle = 0
        """Of them, how many wait for a call."""

    def __len__(self) -> int:
        return self._count

    def begin(self, function: Callable[[], Any]) -> Call:
        """Have a function called; `finish` waits for what it returns."""
        call = Call(function)
        self._calls.put(call)
        if self._count == 0:
            self._add()
        return call

    async def finish(self, call: Call) -> Any:
        """What it returned. Whoever waits no longer does not end it."""
        await asyncio.wait({call.future}, timeout=MOMENT)
        # Not once: a thread that has just taken another call is idle as far as we can see.
        while not (call.begun or call.future.done()):
            if self._calls.qsize() > self._idle:
                self._add()
            await asyncio.wait({call.future}, timeout=MOMENT)
        return await call.future

    def _add(self) -> None:
        with self._lock:
            self._count += 1
            self._idle += 1
        threading.Thread(target=self._work, name=NAME, daemon=True).start()

    def _work(self) -> None:
        while (call := self._next()) is not None:
            call.carry_out()
            call = None  # What it returned may be large.
            with self._lock:
                self._idle += 1

    def _next(self) -> Call | None:
        """A call to carry out; None if there has been nothing to do for long."""
        while True:
            try:
                call = self._calls.get(timeout=IDLE)
            except queue.Empty:
                with self._lock:
                    # Whoever puts a call now sees that there is no thread left, or we see the call.
                    if self._calls.empty():
                        self._count -= 1
                        self._idle -= 1
                        return None
            else:
                with self._lock:
                    self._idle -= 1
                return call


THREADS = Threads()
