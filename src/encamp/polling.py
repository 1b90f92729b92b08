"""Looking whether a file can be read or written, also if many are open: select() knows only those
with small numbers."""

from __future__ import annotations

import select


def is_readable(file: int, seconds: float | None = 0.0) -> bool:
    """Within so many seconds; None: whenever it can be."""
    return _is_ready(file, select.POLLIN, seconds)


def wait_writable(file: int) -> None:
    _is_ready(file, select.POLLOUT, None)


def _is_ready(file: int, event: int, seconds: float | None) -> bool:
    looking = select.poll()
    looking.register(file, event)
    return bool(looking.poll(None if seconds is None else 1000 * seconds))
