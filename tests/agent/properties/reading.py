"""Reading one property in a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from encamp.agent.properties.finding import Plugins
from encamp.agent.properties.reader import Reader
from encamp.home import Home
from encamp.model.property import PropertyDefinition, Reading, Value, ValueKind


def defined(
    command: str,
    *parameters: str,
    kind: ValueKind = ValueKind.INT,
    name: str = "tested",
    ticks: float = 0.0,
    timeout: float = 10.0,
    tolerance: float = 0.0,
) -> PropertyDefinition:
    return PropertyDefinition(
        name=name,
        command=command,
        parameters=parameters,
        return_type=kind,
        ticks=ticks,
        timeout=timeout,
        tolerance=tolerance,
    )


async def read_once(home: Home, definition: PropertyDefinition) -> Reading:
    reader = Reader([definition], Plugins(), changed=_never, home=home)
    return (await reader.read())[definition.name]


async def value_of(
    home: Home, command: str, *parameters: str, kind: ValueKind = ValueKind.INT
) -> Value:
    reading = await read_once(home, defined(command, *parameters, kind=kind))
    assert reading.error == ""
    return reading.value


async def error_of(home: Home, definition: PropertyDefinition) -> str:
    reading = await read_once(home, definition)
    assert reading.value is None
    assert reading.error
    return reading.error


def _never(readings: dict[str, Reading]) -> None:
    raise AssertionError(f"nothing ticks here, and {readings} was told")


@asynccontextmanager
async def running(reader: Reader) -> AsyncIterator[None]:
    task = asyncio.create_task(reader.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.005)
