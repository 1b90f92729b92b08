"""A stand-in for the agent's door: takes what a starter hands over, and says what a test wants."""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

SOURCES = Path(__file__).parents[3] / "src" / "encamp" / "batch" / "starter"
PATIENCE = 60.0
"""Seconds that anything may take here before a test gives up on it."""

Process = subprocess.Popen[bytes]


def build(directory: Path, **variables: str) -> Path:
    """A starter that looks for its door in `directory`."""
    program = directory / "encamp-starter"
    given = {"OUT": program, "DOOR": directory / "bait", **variables}
    words = [f"{name}={value}" for name, value in given.items()]
    subprocess.run(["make", "-s", "-C", SOURCES, *words], check=True, capture_output=True)
    return program


class Visit:
    """A starter at the door, which has said what its job is."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.settimeout(PATIENCE)
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid, self.uid, self.gid = struct.unpack("iII", peer)
        first, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(3 * 4))
        self.streams: list[int] = []
        for level, type, content in ancillary:
            assert (level, type) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            self.streams += array.array("i", content)
        self._head = first
        kind, self.payload = self.frame()
        assert kind == b"J"
        self.fields: dict[str, list[bytes]] = {}
        for tag, value in fields(self.payload):
            self.fields.setdefault(tag, []).append(value)

    def __enter__(self) -> Visit:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release_streams()
        self._connection.close()

    def release_streams(self) -> None:
        while self.streams:
            os.close(self.streams.pop())

    def only(self, tag: str) -> bytes:
        (value,) = self.fields[tag]
        return value

    def frame(self) -> tuple[bytes, bytes]:
        """The next thing that the starter says."""
        head = self._head + self._exactly(5 - len(self._head))
        self._head = b""
        return head[4:5], self._exactly(struct.unpack_from("<I", head)[0])

    def answer(self, kind: bytes, payload: bytes = b"") -> None:
        self._connection.sendall(struct.pack("<I", len(payload)) + kind + payload)

    def say(self, raw: bytes) -> None:
        self._connection.sendall(raw)

    def ended(self, code: int, *, signal: bool = False) -> None:
        self.answer(b"E", bytes([signal, code]))

    def gone(self) -> bool:
        """Has the starter left, without another word?"""
        return self._connection.recv(1) == b""

    def _exactly(self, count: int) -> bytes:
        content = b""
        while len(content) < count:
            piece = self._connection.recv(count - len(content))
            assert piece, "the starter went away in the middle of a sentence"
            content += piece
        return content


class Door:
    """The socket that starters look for. Closed until it is opened."""

    def __init__(self, program: Path, path: Path | None = None) -> None:
        self.program = program
        self.path = path or program.with_name("bait")
        self._socket: socket.socket | None = None
        self._started: list[Process] = []
        self._visits: list[Visit] = []
        self._closing = ExitStack()

    def open(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.path))
        self.path.chmod(0o666)
        self._socket.listen(16)
        self._socket.settimeout(PATIENCE)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes up who waits for a visit
            self._socket.close()
            self._socket = None
            self.path.unlink()

    def is_asked(self) -> bool:
        """Does somebody wait to be let in?"""
        assert self._socket is not None
        return bool(select.select([self._socket], [], [], 0)[0])

    def dismiss(self, count: int) -> None:
        """Those who came first, without hearing them."""
        assert self._socket is not None
        for _ in range(count):
            self._socket.accept()[0].close()

    def accept(self) -> Visit:
        assert self._socket is not None
        connection, _ = self._socket.accept()
        visit = self._closing.enter_context(Visit(connection))
        self._visits.append(visit)
        return visit

    def start(
        self,
        *words: str | Path,
        variables: Mapping[str, str] | None = None,
        program: Sequence[str | Path] = (),
        **more: object,
    ) -> Process:
        """A starter called with these words, as a batch system would."""
        process: Process = subprocess.Popen(  # type: ignore[call-overload]
            [*(program or [self.program]), *words],
            env={"PATH": "/usr/bin:/bin", **(variables or {})},
            **{
                "stdin": subprocess.PIPE,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "process_group": 0,
                **more,
            },
        )
        self._started.append(process)
        return process

    def finish(self, process: Process, input: bytes | None = None) -> tuple[int, bytes, bytes]:
        """How a starter ended, and what came out of it."""
        for visit in self._visits:
            visit.release_streams()
        out, err = process.communicate(input, timeout=PATIENCE)
        return process.returncode, out, err

    def forget(self) -> None:
        """Nothing is left of a test, however it went."""
        self._closing.close()
        self._visits.clear()
        while self._started:
            process = self._started.pop()
            if process.poll() is None:
                found = guards(process.pid)
                process.kill()  # First: else it has another one.
                for guard in found:
                    with suppress(ProcessLookupError):
                        os.kill(guard, signal.SIGKILL)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            process.wait(PATIENCE)

    def end(self) -> None:
        self.forget()
        self.close()


def guards(starter: int) -> list[int]:
    """Who keeps the end of a starter to itself."""
    found = []
    for child in Path(f"/proc/{starter}/task/{starter}/children").read_text().split():
        with suppress(OSError):  # It has just ended.
            if Path(f"/proc/{child}/comm").read_text() == "encamp-guard\n":
                found.append(int(child))
    return found


def fields(payload: bytes) -> Iterator[tuple[str, bytes]]:
    at = 0
    while at < len(payload):
        tag, length = struct.unpack_from("<cI", payload, at)
        yield tag.decode(), payload[at + 5 : at + 5 + length]
        at += 5 + length
    assert at == len(payload)
