"""The door of a bait: where the starters of a batch system's jobs come to on this host.

Everybody may knock. Nobody who does can hold up another: what they bring is bounded and has to come
soon, and nobody has more than a share of the places. There are no more of these than the agent can
have files open for, and who finds none is let go at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from encamp.agent.bait.dropping import Dropping
from encamp.agent.bait.frames import crowded, failed, mistaken
from encamp.agent.bait.starter import STREAMS, GoneError, Visit
from encamp.door.socket_file import listening
from encamp.home import user_name
from encamp.model.errors import Code, EncampError

DOOR = Path("/run/encamp/bait")

MOST_INSIDE = 1024
"""Starters that are dealt with at a time, root's excepted;"""
MOST_OF_ONE = 256
"""and of one user. Fewer, where few files can be open:"""
OPEN, LEFT = 1 + STREAMS, 2
"""so many are for one starter, and of all one in so many is left to the rest of the agent;"""
SHARE = 4
"""and one place in so many may be one user's."""
MOST_CLOSING = 16
"""Starters of one user of which files were taken, and are closed at a time."""
LARGE, MOST_LARGE = 256 << 10, 16
"""Jobs that say more than so many bytes, and how many of those one user may have here at a time."""
READERS = 4
"""Jobs of as many users are read at a time."""
AT_ONCE = 64
"""How many are let in before others get their turn."""
PATIENCE = 10.0
"""Seconds in which a starter has said what it wants."""
MINUTE, MOST_SAID = 60.0, 20
"""Lines of the log about those of one user who are refused, in so many seconds."""
LATER = 1.0
"""Seconds after which whoever finds no place comes again, and in which nobody is let in after
somebody could not be."""

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
        self._leaving: dict[int, list[Visit]] = {}
        """By users; the first of each are being closed."""
        self._dropping = Dropping(self._look_out)
        self._large: dict[int, asyncio.Semaphore] = {}
        self._reading: dict[int, asyncio.Lock] = {}
        self._readers = ThreadPoolExecutor(READERS, "bait-door")
        self._clerk = ThreadPoolExecutor(1, "bait-log")
        self._complaints = Complaints()
        self._closed_for: asyncio.TimerHandle | None = None
        """Until it may be tried again to let somebody in."""
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
        self._look_out()
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
            self._listener = None
        if self._closed_for is not None:
            self._closed_for.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for waiting in self._leaving.values():
            rest = waiting[MOST_CLOSING:]
            del waiting[MOST_CLOSING:]
            threading.Thread(target=close_each, args=(rest,), daemon=True).start()
        await self._dropping.end()
        for threads in (self._readers, self._clerk):
            threads.shutdown(wait=False, cancel_futures=True)
        self._held.close()

    def _look_out(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._knocked)

    def _knocked(self) -> None:
        """Let in who waits; as many as may, so that nobody can keep the others out by coming again
        and again."""
        assert self._listener is not None
        for _ in range(AT_ONCE):
            if self._dropping.is_full:
                asyncio.get_running_loop().remove_reader(self._listener)
                return
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._pause(str(error.strerror))
                return
            connection.setblocking(False)
            self._let_in(Visit(connection))

    def _let_in(self, visit: Visit) -> None:
        if self._is_full(visit.uid):
            with suppress(OSError):
                visit.connection.send(
                    crowded(LATER, "Too many jobs are being started here just now.")
                )
            self._dropping.drop(visit)
            return
        self._inside[visit.uid] += 1
        task = asyncio.create_task(self._receive(visit))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _pause(self, why: str) -> None:
        """Whoever knocks goes on with that: to look again at once would be all that is done."""
        assert self._listener is not None
        LOG.warning("Nobody can be let in just now: %s.", why)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener)
        self._closed_for = loop.call_later(LATER, self._look_out)

    def _is_full(self, uid: int) -> bool:
        most = places()
        if self._inside[uid] >= min(MOST_OF_ONE, max(1, most // SHARE)):
            return True
        return uid not in (0, os.geteuid()) and self._inside.total() >= most

    async def _receive(self, visit: Visit) -> None:
        uid = visit.uid
        try:
            visit.recognize()
            async with asyncio.timeout(self._patience):
                length = await visit.length()
            async with self._room(uid, length):
                async with asyncio.timeout(self._patience):
                    await visit.listen(length)
                await self._understand(visit)
                await self._attend(visit)
        except GoneError:
            pass
        except TimeoutError:
            await self._complain(visit, "has not said what it wants.")
        except EncampError as error:
            await self._complain(visit, f"was refused: {error.sentence}")
            await visit.say(failed(error.code.value, str(error)))
        except Exception as error:
            LOG.exception("Process %d of user %d could not be dealt with.", visit.pid, uid)
            why = f"The agent made a mistake: {type(error).__name__}. Its log says more."
            await visit.say(mistaken(LATER, why))
        finally:
            self._leave(visit)

    async def _complain(self, visit: Visit, what: str) -> None:
        """It may take a while to find a user's name."""

        def say() -> None:
            self._complaints.say(visit.uid, f"{described(visit)} {what}")

        with suppress(RuntimeError):  # There can be no more threads.
            await asyncio.get_running_loop().run_in_executor(self._clerk, say)

    async def _understand(self, visit: Visit) -> None:
        """Others go on meanwhile, and nobody has several threads read for them."""
        loop = asyncio.get_running_loop()
        async with self._reading.setdefault(visit.uid, asyncio.Lock()):
            await loop.run_in_executor(self._readers, visit.understand)

    def _leave(self, visit: Visit) -> None:
        """It is inside as long as something of it is open here: nobody has more than a share of
        that either."""
        if not visit.was_taken:
            self._dropping.drop(visit)
            self._free(visit.uid)
            return
        waiting = self._leaving.setdefault(visit.uid, [])
        waiting.append(visit)
        if len(waiting) <= MOST_CLOSING:
            self._close(visit)

    def _close(self, visit: Visit) -> None:
        loop = asyncio.get_running_loop()

        def close() -> None:
            visit.close()
            with suppress(RuntimeError):  # The agent has ended.
                loop.call_soon_threadsafe(self._left, visit)

        try:
            threading.Thread(target=close, daemon=True).start()
        except RuntimeError as error:
            LOG.warning("What a starter has brought is closed later: %s.", error)
            loop.call_later(LATER, self._close, visit)

    def _left(self, visit: Visit) -> None:
        uid = visit.uid
        waiting = self._leaving[uid]
        waiting.remove(visit)
        if len(waiting) >= MOST_CLOSING:
            self._close(waiting[MOST_CLOSING - 1])
        self._free(uid)

    def _free(self, uid: int) -> None:
        self._inside[uid] -= 1
        if not self._inside[uid]:
            del self._inside[uid]
            self._leaving.pop(uid, None)
            self._large.pop(uid, None)
            self._reading.pop(uid, None)

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


def close_each(visits: Iterable[Visit]) -> None:
    for visit in visits:
        visit.close()


def places() -> int:
    """For how many at a time there is room."""
    return max(1, min(MOST_INSIDE, files() // LEFT // OPEN))


def files() -> int:
    """How many this process can have open."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if most == resource.RLIM_INFINITY else most


def described(visit: Visit) -> str:
    return f"Process {visit.pid} of {user_name(visit.uid)}"


def refused(sentence: str, hint: str = "") -> EncampError:
    return EncampError(Code.NOT_PERMITTED, sentence, hint)
