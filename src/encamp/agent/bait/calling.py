"""Commands of the batch system's that a job calls in its machine (`squeue`, `srun`, `qsub`, ...).
They are run by the job's own starter, in the job's own place outside, and with no other rights than
the job has there. Here is passed on what they read, print and end with.

Whatever the machine says is the word of the job's user at best: only what the batch system's
adapter offers is run, and no more at a time than there may be.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from io import FileIO
from typing import Any

import msgspec

from encamp.agent.bait import frames
from encamp.agent.bait.choosing import is_covered
from encamp.agent.bait.frames import Asked
from encamp.agent.bait.line import Line
from encamp.agent.bait.pipes import drain, fill
from encamp.guest.call import Call
from encamp.guest.channel import Channel, Exec, Exit, Kind
from encamp.guest.frames import STDERR, STDOUT
from encamp.model.batch import Offered, Reads
from encamp.model.errors import EncampError

DIRECTORY = "/run/encamp/bin"
"""Where a machine has them. It comes last in the job's PATH: what an image brings itself counts."""
MOST = 32
"""At a time. Others wait, for those too that nobody wants any more and that have yet to end."""
GRACE = 5.0
"""Seconds for a command to end that nobody waits for any more."""

OUTSIDE = frozenset(
    {
        *("PATH", "HOME", "SHELL", "TMPDIR", "TMP", "TEMP", "PE_HOSTFILE"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT"),
    }
)
"""Variables that say something about the machine inside, and about the host outside."""
ENVIRONMENT = "ENCAMP_ENVIRONMENT"
"""Where a machine says what it is, and a submission what it is for."""
ANSWERED, ASKED_AGAIN = 60.0, 2.0
"""Seconds in which a batch system tells how the job stands, and between two questions."""
INPUT = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
"""Names of the standard input, where a script is named."""

LOG = logging.getLogger(__name__)

Begun = tuple[int, asyncio.Future[Exit], list[FileIO]]


class Calling:
    """Of one job."""

    def __init__(
        self,
        line: Line,
        asked: Asked,
        offered: Mapping[str, Offered],
        environment: str,
        is_queued: Callable[[], bool] = lambda: False,
    ) -> None:
        """`environment`: what its machine is of. `is_queued`: asks whether the job is back in the
        queue, which takes a while."""
        self._line = line
        self._asked = asked
        self._offered = offered
        self._environment = environment
        self.shared: tuple[str, ...] = ()
        """Directories that are the same inside and outside."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: dict[int, asyncio.Future[Exit]] = {}
        self._last = 0
        self._checked: dict[str, str] = {}
        self._slots = asyncio.Semaphore(MOST)
        self._left = False
        """To the starter."""
        self._is_queued = is_queued
        self.queued: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """The job is: a task of it has failed for that, which it is not told."""
        line.on_call_ended = self._ended

    def with_commands(self, wanted: Exec) -> Exec:
        """The job's command, which finds them."""
        if not self._offered:
            return wanted
        path = ":".join(filter(None, (wanted.env.get("PATH", ""), DIRECTORY)))
        return msgspec.structs.replace(wanted, env={**wanted.env, "PATH": path})

    def offer(self, channel: Channel, uid: int) -> None:
        """Have them in the machine, and answer from now on. Nobody waits for that: a machine that
        cannot have them is good for jobs nevertheless."""
        if self._offered:
            channel.calls(DIRECTORY, self._offered, uid, self._called)

    @asynccontextmanager
    async def ended(self) -> AsyncIterator[None]:
        """No call outlasts this. If the machine dies, their commands do: what becomes of the job
        is decided first, which they may be a part of. They end with the starter."""
        try:
            yield
        except EncampError:
            self._left = True
            raise
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    def _called(self, call: Call) -> None:
        task = asyncio.create_task(self._serve(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @asynccontextmanager
    async def _turn(self, call: Call) -> AsyncIterator[bool]:
        """Wait for it. False: nobody does any more."""
        coming = asyncio.create_task(self._slots.acquire())
        try:
            either: set[asyncio.Future[Any]] = {coming, call.gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            yield coming.done() and not call.gone.done()
        finally:
            coming.cancel()
            await asyncio.wait({coming})
            if not coming.cancelled():
                self._slots.release()

    async def _serve(self, call: Call) -> None:
        early: deque[int] = deque(maxlen=64)
        call.on_signal = early.append
        try:
            async with self._turn(call) as is_wanted:
                if is_wanted:
                    await self._answer(call, early)
        except OSError as error:
            call.refuse(error.errno or errno.EIO, "")
        finally:
            # With the job in the queue its script is to hear of nothing any more.
            if not self.queued.done():
                call.refuse(errno.EIO, "")

    async def _answer(self, call: Call, early: Iterable[int]) -> None:
        name = os.fsdecode(call.asked.args[0])
        offered = self._offered.get(name)
        if offered is None:
            call.refuse(errno.ENOENT, "it is not a command that jobs can call from inside")
        elif lacking := await self._lacking(name, call, offered):
            call.refuse(errno.ENOSYS, lacking)
        else:
            await self._run(call, offered, early)

    async def _lacking(self, name: str, call: Call, offered: Offered) -> str:
        """Why it cannot be called; empty: it can."""
        if offered.check and name not in self._checked:
            async with self._begun(call, offered.check) as (_, ended, (input, *outputs)):
                input.close()
                await asyncio.gather(*(drain(output, _forget, ended) for output in outputs))
                how = await ended
            if (how.kind, how.value) == (Kind.EXITED, 0):
                self._checked[name] = ""
            elif how.kind is Kind.EXITED and not call.gone.done():
                # Ended for another reason, it has said nothing.
                self._checked.setdefault(name, offered.lacking)
        return self._checked.get(name, "")

    # ── one of them ──────────────────────────────────────────────────────────────────────────────

    async def _run(self, call: Call, offered: Offered, early: Iterable[int]) -> None:
        words = (*offered.words, *map(os.fsdecode, call.asked.args[1:]))
        async with self._begun(call, words) as (number, ended, (input, output, error)):
            call.on_signal = lambda which: self._signal(number, which)
            for which in early:
                call.on_signal(which)
            reads = does_read(offered, call.asked.args[1:])
            if reads:
                call.want_input()
            else:
                call.stop_input()
            feeding = asyncio.create_task(_feed(call, input, reads))
            try:
                await asyncio.gather(
                    drain(output, partial(call.write, STDOUT), ended),
                    drain(error, partial(call.write, STDERR), ended),
                )
                how = await ended
                if offered.tasks and (how.kind, how.value) != (Kind.EXITED, 0):
                    await self._unless_queued(call)
                call.finish(how)
            finally:
                feeding.cancel()
                await asyncio.wait({feeding})

    async def _unless_queued(self, call: Call) -> None:
        """Does not end if the job is back in the queue: its run is about to."""
        end = time.monotonic() + ANSWERED
        while not call.gone.done() and time.monotonic() < end:
            try:
                is_queued = await asyncio.to_thread(self._is_queued)
            except EncampError as error:
                LOG.warning("It is not known whether the job is in the queue: %s", error.sentence)
                await asyncio.sleep(ASKED_AGAIN)
                continue
            if is_queued and not self.queued.done():
                self.queued.set_result(None)
            if is_queued:
                await asyncio.shield(call.gone)
            return

    @asynccontextmanager
    async def _begun(self, call: Call, words: Sequence[str]) -> AsyncIterator[Begun]:
        """Have the starter run something. Its number, its end, and our ends of its streams. It
        does not outlast this."""
        self._last = number = self._last % 0xFFFFFFFF + 1
        ended = self._ends[number] = asyncio.get_running_loop().create_future()
        ending = asyncio.create_task(self._end_if_gone(number, call))
        files: list[FileIO] = []
        try:
            files += self._hand_over(number, call, words)
            yield number, ended, files
        finally:
            ending.cancel()
            await asyncio.wait({ending})
            if files and not ended.done() and not self._left:
                self._line.say(frames.call_signal(number, signal.SIGKILL))
            del self._ends[number]
            for file in files:
                file.close()

    def _hand_over(self, number: int, call: Call, words: Sequence[str]) -> list[FileIO]:
        said = frames.call_words(
            words[0],
            [call.asked.args[0], *map(os.fsencode, words[1:])],
            variables(call.asked.env, self._asked.variables, self._environment),
            self._outside(call.asked.cwd),
        )
        with ExitStack() as theirs, ExitStack() as held:
            ours, files = [], []
            for mode in ("wb", "rb", "rb"):
                reading, writing = os.pipe2(os.O_CLOEXEC)
                ends = FileIO(reading, "rb"), FileIO(writing, "wb")
                its, our = ends if mode == "wb" else ends[::-1]
                files.append(theirs.enter_context(its).fileno())
                ours.append(held.enter_context(our))
                os.set_blocking(our.fileno(), False)
            paper = FileIO(os.memfd_create("call", os.MFD_CLOEXEC), "wb")
            theirs.enter_context(paper).write(said)
            if not self._line.hand(frames.call(number), [*files, paper.fileno()]):
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            held.pop_all()
            return ours

    def _outside(self, directory: bytes) -> bytes:
        """Where it begins; empty: where the job did. One of the machine's own can have the name of
        another outside, with files of anybody's."""
        return directory if is_covered(os.fsdecode(directory), self.shared) else b""

    def _signal(self, number: int, which: int) -> None:
        if 0 < which < signal.NSIG:
            self._line.say(frames.call_signal(number, which))

    async def _end_if_gone(self, number: int, call: Call) -> None:
        """Nobody waits for it any more, and so it is asked to end, and then made to."""
        await asyncio.shield(call.gone)
        for which in (signal.SIGTERM, signal.SIGCONT):
            self._line.say(frames.call_signal(number, which))
        await asyncio.sleep(GRACE)
        self._line.say(frames.call_signal(number, signal.SIGKILL))

    def _ended(self, number: int, how: int, value: int) -> None:
        end = self._ends.get(number)
        if end is None or end.done():
            return
        if how == Kind.KILLED:
            end.set_result(Exit(Kind.KILLED, value or signal.SIGKILL))
        elif how == Kind.EXITED:
            end.set_result(Exit(Kind.EXITED, value))
        else:
            end.set_result(Exit(Kind.NOT_STARTED, value, os.strerror(value)))


def variables(
    inside: tuple[bytes, ...], outside: Mapping[str, str], environment: str
) -> dict[str, str]:
    """What a command outside finds: the caller's, but for those that mean something else there.
    That a job's own machine is of an environment does not say that what it submits is for it."""
    hosts = OUTSIDE
    if os.fsencode(f"{ENVIRONMENT}={environment}") in inside:
        hosts |= {ENVIRONMENT}
    found = {name: outside[name] for name in hosts if name in outside}
    for entry in inside:
        name, equals, text = os.fsdecode(entry).partition("=")
        if name and equals and name not in hosts:
            found.setdefault(name, text)
    return found


def does_read(offered: Offered, words: tuple[bytes, ...]) -> bool:
    """Does it take something from its standard input?"""
    if offered.reads is not Reads.ALONE:
        return offered.reads is Reads.ALWAYS
    following = 0
    for word in map(os.fsdecode, words):
        if following:
            following -= 1
        elif word in INPUT:
            return True
        elif word.startswith("-"):
            if word.partition("=")[0] in offered.instead:
                return False
            following = _words_after(offered, word)
        else:
            return False
    return True


def _words_after(offered: Offered, option: str) -> int:
    """How many words belong to an option and follow it."""
    if "=" in option or option in offered.options:
        return 0 if "=" in option else offered.options[option]
    if not offered.letters or option.startswith("--"):
        return 1
    letters = option[1:].lstrip("".join(one[1:] for one in offered.options if len(one) == 2))
    return 1 if len(letters) == 1 else 0


async def _feed(call: Call, file: FileIO, reads: bool) -> None:
    """What the caller reads, the command does."""
    try:
        while reads and (data := await call.read()):
            await fill(file, data)
    except OSError:
        call.stop_input()
    finally:
        file.close()


async def _forget(data: bytes) -> None:
    """What nobody wants to know."""
