"""An agent's home, and a package of plug-ins that is really installed."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

import pytest

from encamp.home import Home
from tests.agent.properties.installing import installed

MODULE = "tested_properties"
SOURCE = '''
"""Plug-ins of a site, which tests steer by these variables."""
import asyncio
import threading

value = 1
calls = 0
hanging = threading.Event()   # set: whoever hangs goes on


def given(asked):
    global calls
    calls += 1
    if isinstance(value, BaseException):
        raise value
    return value


async def given_at_once(asked):
    return given(asked)


def hang(asked):
    global calls
    calls += 1
    hanging.wait()
    return 1


async def hang_at_once(asked):
    await asyncio.Event().wait()


async def refuse_to_end(asked):
    while not hanging.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            pass


def huge(asked):
    return "x" * 100_000_000


def counting(asked):
    asked.kept["count"] = asked.kept.get("count", 0) + 1
    return [*asked.parameters, str(asked.kept["count"]), asked.definition.name]
'''

PLUGINS = {
    **{
        name: f"{MODULE}:{name}"
        for name in (
            *("given", "given_at_once", "hang", "hang_at_once", "refuse_to_end"),
            *("huge", "counting"),
        )
    },
    "absent": f"{MODULE}:nothing_of_that_name",
    "broken": "encamp_no_such_module:read",
    "number": f"{MODULE}:calls",
}


class Site(Protocol):
    """The module, as tests see it."""

    value: object
    calls: int
    hanging: threading.Event


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").prepare()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """The module of the installed plug-ins."""
    with installed(tmp_path / "packages", MODULE, SOURCE, PLUGINS):
        module = cast(Site, importlib.import_module(MODULE))
        yield module
        module.hanging.set()
