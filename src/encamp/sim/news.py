"""What hosts tell of the commands that make machines of requests, and what the core hears of it."""

from __future__ import annotations

from collections.abc import Callable

from encamp.core.happenings import Happening, PartMoved, Remembered
from encamp.core.step import Core
from encamp.model.request import Cause, PartState, RequestState
from encamp.sim.said import Told
from encamp.sim.written import Issued, Written

CAUSES = {"image": Cause.IMAGE, "start": Cause.START}
RUNNING = "running"


class News:
    def __init__(self, core: Core, written: Written, happened: Callable[[Happening], None]) -> None:
        self._core = core
        self._written = written
        self._happened = happened
        self.begun: dict[str, set[str]] = {}
        """Of each request, the commands that were issued for it and may not be over."""

    def told(self, host: str, told: Told) -> None:
        """How a command gets on, as its agent tells."""
        issued = self._written.commands.get(told.id)
        if issued is None or issued.host != host:
            return
        if issued.result is not None:
            if issued.result.lost and told.over and not told.lost:
                # It was thought lost, and its host has come back and tells.
                self.over(issued, told)
            return
        issued.taken = True
        if told.over:
            self.over(issued, told)
        else:
            issued.told = told
            self.moved(issued, told)

    def over(self, issued: Issued, told: Told) -> None:
        self._written.over(issued, told)
        self.begun.get(issued.request, set()).discard(issued.id)
        self.moved(issued, told)

    def moved(self, issued: Issued, told: Told) -> None:
        if not told.over and told.phase not in (*CAUSES, RUNNING):
            return
        if told.over and issued.request not in self._core.placement.records:
            record = self._written.latest(issued.request)
            if record is not None and record.state is RequestState.LOST:
                self._happened(Remembered(record))
        running = PartState.RUNNING if told.phase == RUNNING else PartState.STARTING
        self._happened(
            PartMoved(
                request=issued.request,
                number=issued.number,
                attempt=issued.attempt,
                state=PartState.OVER if told.over and not told.standing else running,
                machine=told.machine,
                exit_code=told.exit_code,
                failure=told.failure,
                cause=told.cause if told.over else CAUSES.get(told.phase, Cause.NONE),
                began=_may_have_begun(issued, told),
                blames_environment=told.blames_environment,
                lost=told.lost,
                final=told.final,
                host=issued.host,
            )
        )


def _may_have_begun(issued: Issued, told: Told) -> bool:
    """Only what is known not to have begun may be begun elsewhere."""
    if told.lost and not told.phase:
        return not (issued.told is not None and issued.told.phase in CAUSES)
    return told.phase == RUNNING
