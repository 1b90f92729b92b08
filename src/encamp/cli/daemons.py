"""Running a daemon in the foreground: its log, its signals, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from encamp.cli.cleaning import LogFormatter
from encamp.model.errors import EncampError

FORMAT = "%(asctime)s %(levelname)s %(message)s"

FILES = 65_536
"""Open at a time: more than all who are let in at once need, so that they are told to wait, and
nothing else fails for want of one."""


def run_daemon(
    daemon: Callable[[], Coroutine[Any, Any, None]],
    *,
    verbose: bool,
    reload: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Until it is told to stop (SIGTERM, SIGINT), which is no failure. SIGHUP reloads."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogFormatter(FORMAT))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])
    # The client of the bus logs each failure to connect, which the bus reports by itself.
    logging.getLogger("nats").setLevel(logging.CRITICAL)
    _allow_files()
    asyncio.run(_until_stopped(daemon, reload))


def _allow_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _until_stopped(
    daemon: Callable[[], Coroutine[Any, Any, None]],
    reload: Callable[[], Awaitable[None]] | None,
) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(daemon())
    stopping = False
    reloading: set[asyncio.Task[None]] = set()

    def stop(number: signal.Signals) -> None:
        nonlocal stopping
        stopping = True
        logging.getLogger(__name__).info("Told to stop, by %s.", number.name)
        task.cancel()

    async def reload_now() -> None:
        assert reload is not None
        try:
            await reload()
        except EncampError as error:
            logging.getLogger(__name__).warning("%s\n%s", error, error.detail)

    def begin_reload() -> None:
        if reload is not None:
            started = asyncio.create_task(reload_now())
            reloading.add(started)
            started.add_done_callback(reloading.discard)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGHUP, begin_reload)
    try:
        await task
    except asyncio.CancelledError:
        if not stopping:
            raise
    except BaseExceptionGroup as group:
        raise first_cause(group) from group
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)
        for started in reloading:
            started.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await started


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What a person should be told, of several things that went wrong at once."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        errors = [error for error in found.exceptions if isinstance(error, EncampError)]
        found = errors[0] if errors else found.exceptions[0]
    return found
