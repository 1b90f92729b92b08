"""Running a job through the site: the same to its caller as if it ran on this host."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import msgspec

from encamp.cli import requests
from encamp.cli.attached import Attached
from encamp.cli.bar import Bar
from encamp.cli.caller_files import CallerFiles, as_told, check_files, for_part
from encamp.cli.labelled import Labelled
from encamp.cli.steering import conclude, window_changes, with_signals
from encamp.cli.streams import StandardStreams
from encamp.cli.terminal import raw_terminal, window
from encamp.cli.wishes import Wishes, request_of
from encamp.door.client import AnyDoor
from encamp.meeting.client import Files, Streams
from encamp.model.errors import Code, EncampError
from encamp.model.job import Job, Outcome
from encamp.model.request import Request


def run_through_site(
    door: AnyDoor, job: Job, wishes: Wishes, *, timings: bool, as_json: bool
) -> int:
    check_files(job)
    request = request_of(wishes, job.machine, as_told(job))
    if job.command.terminal is not None and (wishes.detach or wishes.count > 1):
        who = "A detached job has" if wishes.detach else "Several machines have"
        raise EncampError(Code.USAGE, f"{who} no terminal of yours to speak with.", "Leave -t out.")
    if wishes.detach:
        return asyncio.run(_detach(door, job, request))
    outcome = asyncio.run(_run(door, job, request))
    return conclude(outcome, timings=timings, as_json=as_json)


async def _run(door: AnyDoor, job: Job, request: Request) -> Outcome:
    with ExitStack() as held:
        bar = held.enter_context(Bar())
        parts = Parts(job, request.count)
        held.callback(parts.close)
        attached = Attached(door, request, part=parts, progress=bar, window=window())
        attached.on_start = bar.finish
        if job.command.terminal is not None:
            held.enter_context(raw_terminal())
            held.enter_context(window_changes(attached))
        ended = await with_signals(attached.run(), attached)
        await parts.flush()
        return parts.judge([outcome for outcome in ended if outcome is not None])


class Parts:
    """The caller's streams and files, for each of the machines."""

    def __init__(self, job: Job, count: int) -> None:
        self._job = job
        self._count = count
        self._streams = StandardStreams()
        self._files: dict[int, CallerFiles] = {}
        self._labelled: dict[int, Labelled] = {}

    def __call__(self, number: int) -> tuple[Streams, Files]:
        job = self._job
        outputs = job.outputs if self._count == 1 else for_part(job.outputs, number)
        files = self._files[number] = CallerFiles(job.inputs, outputs)
        if self._count == 1:
            return self._streams, files
        labelled = self._labelled[number] = Labelled(self._streams, number, self._count)
        return labelled, files

    async def flush(self) -> None:
        for labelled in self._labelled.values():
            await labelled.flush()

    def judge(self, outcomes: list[Outcome]) -> Outcome:
        """One outcome for all: of the machine with the highest exit code."""
        judged = [self._files[number].judge(outcome) for number, outcome in enumerate(outcomes)]
        worst = max(judged, key=lambda one: one.exit_code)
        return msgspec.structs.replace(
            worst,
            missing=tuple(dict.fromkeys(name for one in judged for name in one.missing)),
            problems=tuple(problem for one in judged for problem in one.problems),
        )

    def close(self) -> None:
        self._streams.close()


# ── detached ─────────────────────────────────────────────────────────────────────────────────────


async def _detach(door: AnyDoor, job: Job, request: Request) -> int:
    if not job.inputs:
        record = await requests.submit(door, request)
        print(record.request.id)
        return 0
    # Its files go straight to its hosts: that takes until those are known.
    with Bar() as bar:
        parts = Parts(job, request.count)
        attached = Attached(door, request, part=parts, progress=bar)
        attached.on_submit = lambda record: print(record.request.id, flush=True)
        await with_signals(attached.run(), attached)
    return 0
