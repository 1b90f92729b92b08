"""A command under way as its agent sees it: how far it is, and how much of it the manager knows."""

from __future__ import annotations

from encamp.agent.commands.directory import CommandDirectory, Result
from encamp.agent.commands.stage import Stage, read_stage
from encamp.bus.messages import CommandNews
from encamp.model.command import OVER, CommandState

LARGE_VALUE = 128 << 10
"""Bytes; a result so large travels without output beside it."""


class Tracked:
    def __init__(
        self, directory: CommandDirectory, *, is_new: bool, internal: bool = False
    ) -> None:
        self.directory = directory
        self.internal = internal
        """It waits for no turn, and may tell how far it is."""
        self.child: int | None = None
        """The process that carries it out, if it is a child of ours."""
        self.attempts = 0
        """How often such a process was started without beginning."""
        self.to_stop = not is_new and directory.cancel.exists()
        """Somebody wants it to stop."""
        self.started = 0.0
        self.printed = 0
        self.stage = Stage()
        self.result: Result | None = None
        self.settled = False
        """The manager knows how it ended."""
        self._has: int | None = 0 if is_new else None
        """Bytes of output that the manager has; None if only it knows."""
        self._told: tuple[float, str, str] | None = None
        """With which start and stage it was last told to be running."""
        self.attended = False
        """Somebody is just doing what there is to do about it."""
        self.refresh()

    @property
    def begun(self) -> bool:
        return bool(self.started)

    def is_over(self) -> bool:
        return self.result is not None

    def was_ended(self) -> bool:
        """Did it end before it was done, so that it may have left something?"""
        done = (CommandState.DONE, CommandState.FAILED)
        result = self.result
        return result is not None and (result.cut_short or result.state not in done)

    def is_waiting(self) -> bool:
        """Does it wait for its turn?"""
        return not self.begun and self.child is None and self.result is None

    def refresh(self) -> bool:
        """Look at the disk; has anything changed?"""
        before = self.started, self.printed, self.result, self.stage
        if self.result is None:
            # First, so that all output of one that is over is there already.
            self.result = self.directory.read_result()
        if not self.begun:
            self.started = self.directory.started()
        self.printed = self.directory.printed()
        if self.internal and self.begun:
            self.stage = read_stage(self.directory.progress)
        return before != (self.started, self.printed, self.result, self.stage)

    def news(self, most: int) -> CommandNews | None:
        """What to tell the manager next, with so many bytes of output at most; perhaps nothing."""
        if self.settled:
            return None
        has = self._has
        if has is None and not self.printed:
            has = 0
        if has is None:
            # Asks how much it has, by telling nothing.
            return CommandNews(
                id=self.directory.id, state=CommandState.RUNNING, started=self.started
            )
        # No more than was seen of it, however much there is by now: the rest is news of its own.
        unsaid = min(most, self.printed - has)
        piece = self.directory.read_output(has, unsaid) if unsaid > 0 else b""
        if self.result is not None and has + len(piece) >= self.printed:
            last = self._last(self.result, has, piece)
            if last is not None:
                return last
        elif not piece and self._told == (self.started, self.stage.phase, self.stage.machine):
            return None
        return CommandNews(
            id=self.directory.id,
            state=CommandState.RUNNING,
            reason="It waits for its turn." if self.is_waiting() else "",
            started=self.started,
            offset=has,
            piece=piece,
            phase=self.stage.phase,
            machine=self.stage.machine,
        )

    def _last(self, result: Result, offset: int, piece: bytes) -> CommandNews | None:
        if piece and self.directory.result.stat().st_size > LARGE_VALUE:
            return None
        return CommandNews(
            id=self.directory.id,
            state=result.state,
            reason=result.reason,
            started=result.started,
            ended=result.ended,
            value=result.value,
            exit_code=result.exit_code,
            offset=offset,
            piece=piece,
            phase=result.stage.phase,
            machine=result.stage.machine,
        )

    def taken(self, told: CommandNews, has: int) -> None:
        """The manager has written this down, and has so many bytes of the output."""
        self._has = max(0, min(has, self.printed))
        self._told = told.started, told.phase, told.machine
        self.settled = told.state in OVER and self._has >= self.printed

    def tell_again(self) -> None:
        """Another manager may know less."""
        self._has = None
        self._told = None
