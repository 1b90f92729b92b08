"""Unix sockets of a machine, whatever the length of its directory's path.

They are made listening before the machine's process exists and handed to it, so a client can
connect and speak at once: the kernel keeps what was said until the process is there to hear it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from encamp.model.errors import Code, EncampError


@contextmanager
def _short_path(directory: Path, name: str) -> Iterator[str]:
    """A path that fits into a socket address (108 bytes) for any directory."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def listen(directory: Path, name: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short_path(directory, name) as path:
            # A machine that is restored finds the socket of its earlier life.
            (directory / name).unlink(missing_ok=True)
            listener.bind(path)
        (directory / name).chmod(0o600)
        listener.listen(4)
    except BaseException:
        listener.close()
        raise
    return listener


def connect(directory: Path, name: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        client.setblocking(False)
        with _short_path(directory, name) as path:
            client.connect(path)
    except OSError as error:
        client.close()
        raise EncampError(
            Code.MACHINE_LOST,
            f"The machine cannot be reached: {error.strerror}.",
            "It may have ended just now; 'encamp ps' tells.",
            transient=True,
        ) from error
    except BaseException:
        client.close()
        raise
    return client
