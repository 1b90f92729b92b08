"""Bringing a file of a repository to this host: resumed, tried again, hashed as it arrives.

What has arrived stays in a partial file named by what it shall become, so that whoever asks next
goes on from there, be it after a kill or from another repository.
"""

from __future__ import annotations

import errno
import hashlib
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from encamp import programs
from encamp.home import Home
from encamp.images.content import CHUNK
from encamp.images.repository_files import Incoming, Medium
from encamp.images.transfer_meter import Meter
from encamp.model.errors import Code, EncampError
from encamp.model.image import ImageFile

PARTIAL = "download-"
BACKOFF = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each new try after a broken one."""
ADVANCE = 1 << 20
"""Bytes; a try that gets so much further was a good one, and the count begins anew."""
WRITTEN_EVERY = 0.2
"""Seconds after which what has arrived meanwhile is sent to the disk."""
PIECES = 8
"""How many pieces of a file may wait to be hashed."""


def partial(home: Home, digest: str, file: ImageFile) -> Path:
    """Written by whoever holds the lock on pulling that image."""
    return home.cache / f"{PARTIAL}{digest}.{file.name}"


def note(target: Path) -> Path:
    """Beside a partial file: where it comes from, and what the server called its content."""
    return target.with_name(f"{target.name}.from")


def arrived(home: Home, digest: str, files: tuple[ImageFile, ...]) -> int:
    """How many bytes of an image's files are here already."""
    return sum(min(file.size, size(partial(home, digest, file))) for file in files)


def receive(medium: Medium, path: str, file: ImageFile, target: Path, meter: Meter) -> None:
    """Complete a partial file; when this returns, its content is known to be right."""
    tries, furthest, restarts = iter(BACKOFF), size(target), 0
    while True:
        reception = Reception(medium, path, file, target, meter)
        try:
            return reception.run()
        except EncampError as error:
            restarts += reception.restarted
            if not error.transient or (error.code is Code.CORRUPT and restarts > 1):
                raise
            # Only further than ever before is further: a server that makes us begin anew, again
            # and again, would go on for ever.
            if size(target) >= furthest + ADVANCE:
                tries, furthest = iter(BACKOFF), size(target)
            pause = next(tries, None)
            if pause is None or restarts > len(BACKOFF):
                error.hint = (
                    f"{error.hint} What has arrived is kept: the next try goes on from there."
                ).lstrip()
                raise
            meter.say(f"trying again: {error.sentence}")
        if programs.STOPPING.wait(pause):
            programs.refuse_when_stopping()


class Reception:
    """One try."""

    def __init__(
        self, medium: Medium, path: str, file: ImageFile, target: Path, meter: Meter
    ) -> None:
        self.medium, self.path, self.file = medium, path, file
        self.target, self.meter = target, meter
        self.note = note(target)
        self.url = f"{medium.where}/{path}"
        self.restarted = False
        """What was there before was no good."""

    def run(self) -> None:
        with disk_errors(self.target):
            handle = os.open(self.target, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._receive(handle)
            finally:
                os.close(handle)

    def _receive(self, handle: int) -> None:
        digest = hashlib.sha256()
        have = self._hash_what_is_there(handle, digest)
        self.meter.add(have)
        done = have
        try:
            if have < self.file.size:
                with self.medium.open(self.path, have, self._validator()) as incoming:
                    begun = self._begin(handle, incoming, have)
                    if begun != have:
                        self.meter.take_back(have - begun)
                        digest, done = hashlib.sha256(), begun
                    assert incoming is not None
                    done = self._copy(handle, incoming, digest, done)
            if done < self.file.size:
                raise EncampError(
                    Code.UNREACHABLE,
                    f"{self.medium.where} broke off after {done} of {self.file.size} bytes of"
                    f" {self.path}.",
                    transient=True,
                )
        except BaseException:
            self.meter.take_back(done)
            raise
        if digest.hexdigest() != self.file.sha256:
            self.meter.take_back(done)
            self._start_over()
            raise EncampError(
                Code.CORRUPT,
                f"{self.path} of {self.medium.where} has SHA-256 {digest.hexdigest()} where"
                f" {self.file.sha256} was expected.",
                "It is damaged or was replaced in the repository. Nothing of it is used; tell"
                " whoever keeps the repository.",
                # What was there before may have been of another file: once more from the start.
                transient=have > 0,
            )

    def _hash_what_is_there(self, handle: int, digest: hashlib._Hash) -> int:
        have = os.fstat(handle).st_size
        if have > self.file.size:
            os.ftruncate(handle, 0)
            return 0
        while piece := os.read(handle, CHUNK):
            programs.refuse_when_stopping()
            digest.update(piece)
        return have

    def _validator(self) -> str:
        """What the server called the file when it began, if it is the same server."""
        try:
            url, _, validator = self.note.read_text().partition("\n")
        except (OSError, UnicodeDecodeError):
            return ""
        return validator if url == self.url else ""

    def _begin(self, handle: int, incoming: Incoming | None, have: int) -> int:
        """Where in the file the answer begins; refuse one that cannot be right."""
        if incoming is None:
            raise EncampError(
                Code.CORRUPT,
                f"{self.medium.where} has no {self.path}, though its record says so.",
                "The repository is incomplete; tell whoever keeps it, or push the image again.",
            )
        if incoming.size is not None and incoming.size != self.file.size:
            raise EncampError(
                Code.CORRUPT,
                f"{self.path} of {self.medium.where} has {incoming.size} bytes where"
                f" {self.file.size} were expected.",
                "It was replaced in the repository; tell whoever keeps it.",
            )
        with disk_errors(self.target):
            if incoming.start != have:
                # The server cannot resume, or its file is another one by now.
                os.ftruncate(handle, incoming.start)
                self.restarted = True
            os.lseek(handle, incoming.start, os.SEEK_SET)
            if incoming.start == 0:
                self.note.write_text(f"{self.url}\n{incoming.validator}")
        return incoming.start

    def _copy(self, handle: int, incoming: Incoming, digest: hashlib._Hash, done: int) -> int:
        with hashing(digest) as pieces, written_behind(handle):
            while done < self.file.size:
                programs.refuse_when_stopping()
                piece = incoming.read(min(CHUNK, self.file.size - done))
                if not piece:
                    break
                with disk_errors(self.target):
                    write_all(handle, piece)
                pieces.put(piece)
                done += len(piece)
                self.meter.add(len(piece))
            if done == self.file.size and incoming.read(1):
                self._start_over()
                raise EncampError(
                    Code.CORRUPT,
                    f"{self.path} of {self.medium.where} is longer than the {done} bytes that its"
                    " record says.",
                    "It was replaced in the repository; tell whoever keeps it.",
                )
        return done

    def _start_over(self) -> None:
        self.restarted = True
        os.truncate(self.target, 0)
        self.note.unlink(missing_ok=True)


@contextmanager
def hashing(digest: hashlib._Hash) -> Iterator[queue.Queue[bytes | None]]:
    """A thread that hashes what is put into the queue: hashing one piece, writing the next and
    receiving the one after that go on at the same time."""
    pieces: queue.Queue[bytes | None] = queue.Queue(PIECES)

    def work() -> None:
        while (piece := pieces.get()) is not None:
            digest.update(piece)

    thread = threading.Thread(target=work, name="hash", daemon=True)
    thread.start()
    try:
        yield pieces
    finally:
        pieces.put(None)
        thread.join()


@contextmanager
def written_behind(handle: int) -> Iterator[None]:
    """A thread that keeps the disk busy with what was written so far. At the end all of it has to
    be there, and then little is left to wait for."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(WRITTEN_EVERY):
            # What goes wrong here goes wrong again where it is noticed.
            with suppress(OSError):
                os.fdatasync(handle)

    thread = threading.Thread(target=work, name="disk", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def write_all(handle: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def disk_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise EncampError(
                Code.DISK_FULL,
                f"The disk filled up while an image was pulled to {target.parent}.",
                "Make room ('encamp image gc') and try again; what has arrived is kept.",
            ) from error
        raise EncampError(Code.DISK_FULL, f"Cannot write {target}: {error.strerror}.") from error
