"""What is worth telling of requests, found by comparing how far they are with how far they were."""

from __future__ import annotations

import time

from encamp.manager.recording import Recorder
from encamp.model.event import Event, EventKind
from encamp.model.request import REQUEST_OVER, Request, RequestRecord, RequestState

KINDS = {
    RequestState.WAITING: EventKind.REQUEST_WAITING,
    RequestState.STARTING: EventKind.REQUEST_STARTING,
    RequestState.RUNNING: EventKind.REQUEST_RUNNING,
    **dict.fromkeys(REQUEST_OVER, EventKind.REQUEST_OVER),
}
"""Asking hosts for room is nobody's news."""
FEW_HOSTS = 3


class Chronicle:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._told: dict[str, RequestState] = {}

    def remembered(self, record: RequestRecord) -> None:
        """It was told before."""
        self._told[record.request.id] = record.state

    def submitted(self, request: Request) -> None:
        self._told[request.id] = RequestState.WAITING
        count = f"{request.count} machines" if request.count > 1 else "a machine"
        purpose = " for a job" if request.job is not None else ""
        sentence = f"{request.owner} wants {count} of {request.environment}{purpose}."
        facts = {"owner": request.owner, "environment": request.environment}
        self._tell(EventKind.REQUEST_SUBMITTED, sentence, request, "", facts)

    def moved(self, record: RequestRecord) -> None:
        request, state = record.request, record.state
        kind = KINDS.get(state)
        if kind is None or self._told.get(request.id) is state:
            return
        if state in REQUEST_OVER:
            self._told.pop(request.id, None)
        else:
            self._told[request.id] = state
        what = "Job" if request.job is not None else "Request"
        sentence = f"{what} {request.id[:8]} of {request.owner} {_words(record)}"
        host = record.parts[0].host if record.parts else ""
        facts = {"state": state.value, "owner": request.owner, "environment": request.environment}
        self._tell(kind, sentence, request, host, facts)

    def _tell(
        self, kind: EventKind, sentence: str, request: Request, host: str, facts: dict[str, str]
    ) -> None:
        at = time.time()
        event = Event(
            at=at, kind=kind, sentence=sentence, host=host, subject=request.id, facts={**facts}
        )
        self._recorder.events([event])


def _words(record: RequestRecord) -> str:
    state = record.state
    if state is RequestState.STARTING:
        hosts = sorted({part.host for part in record.parts})
        more = f" and {len(hosts) - FEW_HOSTS} more" if len(hosts) > FEW_HOSTS else ""
        return f"starts on {', '.join(hosts[:FEW_HOSTS])}{more}."
    if state is RequestState.DONE and record.exit_code is not None:
        return f"is done: exit code {record.exit_code}."
    why = f": {record.reason.sentence}" if record.reason.sentence else "."
    return f"{_IN_WORDS[state]}{why}"


_IN_WORDS = {
    RequestState.WAITING: "waits again",
    RequestState.RUNNING: "is running",
    RequestState.DONE: "is done",
    RequestState.FAILED: "failed",
    RequestState.CANCELLED: "was cancelled",
    RequestState.LOST: "is lost",
}
