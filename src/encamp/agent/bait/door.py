"""The door of a bait: where the starters of a batch system's jobs come to on this host.

Everybody may knock. Nobody who does can hold up another: what they bring is bounded and has to come
soon, and nobody has more than a share of the places.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from encamp.agent.bait.frames import again, failed
from encamp.agent.bait.starter import GoneError, Visit
from encamp.door.socket_file import listening
from encamp.home import user_name
from encamp.model.errors import Code, EncampError

DOOR = Path("/run/encamp/bait")

MOST_INSIDE = 1024
"""Starters that are dealt with at a time, root's excepted;"""
MOST_OF_ONE = 256
"""and of one user."""
LARGE, MOST_LARGE = 256 << 10, 16
"""Jobs that say more than so many bytes, and how many of those one user may have here at a time."""
AT_ONCE = 64
"""How many are let in before others get their turn."""
PATIENCE = 10.0
"""Seconds in which a starter has said what it wants."""
MINUTE, MOST_SAID = 60.0, 20
"""Lines of the log about those of one user who are refused, in so many seconds."""
LATER = 1.0
"""Seconds after which whoever finds no place comes again."""

Attend = Callable[[Visit], Awaitable[None]]
"""Deals with a starter that has said what it wants. It is closed afterwards."""

LOG = logging.getLogger(__name__)


class BaitDoor:
    """Stands open while `async with` does."""

    def __init__(self, attend: Attend, path: Path = DOOR, patience: float = PATIENCE) -> None:
        self.path = path
        self._attend = attend
        self._patience = patience
        self._held = ExitStack()
        self._listener: socket.socket | None = None
        self._inside: Counter[int] = Counter()
        self._large: dict[int, asyncio.Semaphore] = {}
        self._complaints = Complaints()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        if not self.path.parent.is_dir():
            self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self.path.parent.chmod(0o755)
        try:
            self._listener = self._held.enter_context(listening(self.path))
        except EncampError as error:
            raise EncampError(
                error.code,
                f"The bait of this host cannot be opened: {error.sentence}",
                "One agent of root's is enough for a host.",
            ) from error
        asyncio.get_running_loop().add_reader(self._listener, self._knocked)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Whoever is inside has to come again, to the next agent."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._held.close()

    def _knocked(self) -> None:
        """Let in who waits; as many as may, so that nobody can keep the others out by coming again
        and again."""
        assert self._listener is not None
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                LOG.warning("A starter could not be let in: %s.", error)
                return
            self._let_in(connection)

    def _let_in(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            visit = Visit(connection)
        except (EncampError, OSError):
            connection.close()  # It has gone already.
            return
        task = asyncio.create_task(self._receive(visit))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _receive(self, visit: Visit) -> None:
        uid = visit.starter.uid
        full = self._inside[uid] >= MOST_OF_ONE or (
            uid not in (0, os.geteuid()) and self._inside.total() >= MOST_INSIDE
        )
        self._inside[uid] += 1
        try:
            if full:
                await visit.say(again(LATER, "Too many jobs are being started here just now."))
                return
            async with asyncio.timeout(self._patience):
                length = await visit.length()
            async with self._room(uid, length):
                async with asyncio.timeout(self._patience):
                    await visit.listen(length)
                await self._attend(visit)
        except GoneError:
            pass
        except TimeoutError:
            self._complaints.say(uid, f"{described(visit)} has not said what it wants.")
        except EncampError as error:
            self._complaints.say(uid, f"{described(visit)} was refused: {error.sentence}")
            await visit.say(failed(error.code.value, str(error)))
        except Exception as error:
            LOG.exception("%s could not be dealt with.", described(visit))
            why = f"The agent made a mistake: {type(error).__name__}. Its log says more."
            await visit.say(again(LATER, why))
        finally:
            visit.close()
            self._inside[uid] -= 1
            if not self._inside[uid]:
                del self._inside[uid]
                self._large.pop(uid, None)

    @asynccontextmanager
    async def _room(self, uid: int, length: int) -> AsyncIterator[None]:
        """What is large is taken in only so often at a time for one user."""
        if length <= LARGE:
            yield
            return
        async with self._large.setdefault(uid, asyncio.Semaphore(MOST_LARGE)):
            yield


class Complaints:
    """What is logged of those who are refused: not more of one user than somebody can read."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._said: dict[int, tuple[float, int]] = {}
        """Since when, and how much."""

    def say(self, uid: int, sentence: str) -> None:
        since, count = self._said.get(uid, (self._now(), 0))
        if self._now() - since >= MINUTE:
            if count > MOST_SAID:
                LOG.warning("%d more of %s were refused.", count - MOST_SAID, user_name(uid))
            since, count = self._now(), 0
        self._said[uid] = since, count + 1
        if count < MOST_SAID:
            LOG.warning("%s", sentence)


def described(visit: Visit) -> str:
    starter = visit.starter
    return f"Process {starter.pid} of {user_name(starter.uid)}"


def refused(sentence: str, hint: str = "") -> EncampError:
    return EncampError(Code.NOT_PERMITTED, sentence, hint)
