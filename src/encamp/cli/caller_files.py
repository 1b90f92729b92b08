"""The caller's own files, for a job that runs elsewhere."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from encamp.model.job import Copy, Job, Outcome

if TYPE_CHECKING:
    from encamp.agent.copying import Copied


class CallerFiles:
    def __init__(self, inputs: tuple[Copy, ...], outputs: tuple[Copy, ...]) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._copied: list[Copied] = []

    async def pack(self, number: int, name: str) -> AsyncIterator[bytes]:
        from encamp.agent.copying import HOST_FILES

        async for piece in HOST_FILES.pack(number, Path(self._inputs[number].source), name):
            yield piece

    async def unpack(self, number: int, pieces: AsyncIterable[bytes]) -> None:
        from encamp.agent.copying import HOST_FILES

        self._copied.append(await HOST_FILES.unpack(number, self._outputs[number], pieces))

    def all_there(self) -> bool:
        """Is everything that came where it belongs?"""
        return not any(copied.problems for copied in self._copied)

    def judge(self, outcome: Outcome) -> Outcome:
        """With what was found out about the files only here."""
        missing = [name for copied in self._copied for name in copied.missing]
        problems = [problem for copied in self._copied for problem in copied.problems]
        return msgspec.structs.replace(
            outcome,
            missing=(*outcome.missing, *missing),
            problems=(*outcome.problems, *problems),
        )


def check_files(job: Job) -> None:
    """Refuse what is not there, or could not be written, before anybody is asked."""
    if job.inputs or job.outputs:
        from encamp.agent.copying import check_inputs, check_outputs

        check_inputs(job.inputs)
        check_outputs(job.outputs)


def as_told(job: Job) -> Job:
    """With paths that mean the same from everywhere: its host knows names by them, and whoever
    fetches its files later where they belong."""
    return msgspec.structs.replace(
        job,
        inputs=tuple(Copy(_absolute(one.source), one.target) for one in job.inputs),
        outputs=tuple(Copy(one.source, _target(one)) for one in job.outputs),
    )


def _target(copy: Copy) -> str:
    if copy.target is None:
        return f"{os.getcwd()}/"  # noqa: PTH109
    slash = "/" if copy.target.endswith("/") else ""
    return _absolute(copy.target) + slash


def _absolute(path: str) -> str:
    """Links are not followed: what is copied keeps the name that it was given by."""
    return os.path.abspath(path)  # noqa: PTH100


def for_part(outputs: tuple[Copy, ...], number: int) -> tuple[Copy, ...]:
    """Where the files of one of several machines go: each has a directory of its number."""
    return tuple(Copy(one.source, f"{(_target(one)).rstrip('/')}/{number}/") for one in outputs)
