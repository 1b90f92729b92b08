"""The connection with a job's starter, while its job is carried out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

from encamp.agent.bait.frames import Listening
from encamp.model.errors import EncampError


class Line:
    """`on_signal` is called with what the starter passes on, and whether that is for the command
    alone; `on_call_ended` with a call that has ended, how, and with what; `gone` is set when it
    ends, or says what makes no sense."""

    def __init__(self, connection: socket.socket) -> None:
        self.gone = asyncio.Event()
        self.on_signal: Callable[[int, bool], None] = lambda number, alone: None
        self.on_call_ended: Callable[[int, int, int], None] = lambda number, how, value: None
        self._connection = connection
        self._listening = Listening()
        self._loop = asyncio.get_running_loop()
        connection.setblocking(False)
        self._loop.add_reader(connection, self._hear)

    def say(self, frame: bytes) -> bool:
        """Say something short; false: it is gone, or does not listen."""
        if self.gone.is_set():
            return False
        try:
            return self._connection.send(frame, socket.MSG_NOSIGNAL) == len(frame)
        except OSError:
            return False

    def hand(self, frame: bytes, files: Sequence[int]) -> bool:
        """Say something short, with files; false: it is gone, or does not listen."""
        if self.gone.is_set():
            return False
        try:
            sent = socket.send_fds(self._connection, [frame], files, socket.MSG_NOSIGNAL)
            return sent == len(frame)
        except OSError:
            return False

    def close(self) -> None:
        self._loop.remove_reader(self._connection)
        self._connection.close()
        self.gone.set()

    def _hear(self) -> None:
        try:
            data = self._connection.recv(4096)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        try:
            signals = self._listening.feed(data)
        except EncampError:
            data = b""
        else:
            for number, alone in signals:
                self.on_signal(number, alone)
            ended, self._listening.ended = self._listening.ended, []
            for call in ended:
                self.on_call_ended(*call)
        if not data:
            self._loop.remove_reader(self._connection)
            self.gone.set()
