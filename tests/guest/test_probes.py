"""What the guest program can tell of a machine: files that exist, ports that answer."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from encamp.guest.channel import Exec, Exit
from tests.guest.support import Guest, read_all


async def builtin(guest: Guest, *words: str, stdin: bytes = b"") -> tuple[bytes, Exit]:
    """A builtin's standard error, and how it ended."""
    channel = await guest.open()
    stream = channel.execute(Exec(args=list(words), uid=os.getuid(), gid=os.getgid(), builtin=True))
    stream.stdout.discard()
    if stdin:
        await stream.write(stdin)
    await stream.end()
    return await read_all(stream.stderr), await stream.wait()


async def test_what_exists_is_told_from_what_does_not(guest: Guest, tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    assert (await builtin(guest, "exists", str(tmp_path / "there")))[1].code == 0
    said, ended = await builtin(guest, "exists", str(tmp_path / "missing"))
    assert (ended.code, said) == (1, f"file {tmp_path}/missing does not exist\n".encode())


@contextmanager
def two_of_one_port() -> Iterator[dict[socket.AddressFamily, socket.socket]]:
    """The same port of both families, so that nobody else answers there."""
    with ExitStack() as held:
        while True:
            made = {
                family: held.enter_context(socket.socket(family))
                for family in (socket.AF_INET6, socket.AF_INET)
            }
            made[socket.AF_INET6].bind(("::1", 0))
            with suppress(OSError):  # Somebody has it.
                made[socket.AF_INET].bind(("127.0.0.1", made[socket.AF_INET6].getsockname()[1]))
                break
        yield made


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
async def test_port_that_answers_is_told_from_one_that_does_not(
    guest: Guest, family: socket.AddressFamily
) -> None:
    with two_of_one_port() as listeners:
        listener = listeners[family]
        port = listener.getsockname()[1]
        said, ended = await builtin(guest, "answers", str(port))
        assert (ended.code, said) == (1, f"port {port} refuses connections\n".encode())
        listener.listen()
        assert (await builtin(guest, "answers", str(port)))[1].code == 0


@pytest.mark.parametrize("word", ["", "0", "-1", "65536", "80x", " 80", "x", "9" * 100])
async def test_what_is_no_port_is_refused(guest: Guest, word: str) -> None:
    said, ended = await builtin(guest, "answers", word)
    assert (ended.code, said) == (64, f"'{word}' is not a port\n".encode())


@pytest.mark.parametrize("words", [("exists",), ("answers", "80", "81"), ("unpack", "a", "b")])
async def test_builtin_with_the_wrong_words_says_what_it_takes(
    guest: Guest, words: tuple[str, ...]
) -> None:
    said, ended = await builtin(guest, *words)
    assert ended.code == 64
    assert said.startswith(b"usage: pack BASE PATTERN... |")
