"""A repository in a directory, on this host or on a file server."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from encamp import programs
from encamp.images.content import CHUNK
from encamp.images.repository_files import Incoming, read_all
from encamp.images.transfer_meter import Meter
from encamp.images.waiting import LOOK_AGAIN
from encamp.model.errors import Code, EncampError
from encamp.progress import Progress

LOCK = ".lock"
NEW = ".new"
"""How the name of a file ends that is being written."""
RIGHTS, DIRECTORY_RIGHTS = 0o644, 0o755
"""A repository is there for others to read, whatever the umask says."""


class OpenFile:
    """A file of the directory, being read."""

    def __init__(self, handle: int, offset: int, validator: str) -> None:
        self.handle = handle
        found = os.fstat(handle)
        self.size = found.st_size
        self.validator = f"{found.st_ino}-{found.st_size}-{found.st_mtime_ns}"
        changed = bool(validator) and validator != self.validator
        self.start = 0 if changed or offset > self.size else offset
        os.lseek(handle, self.start, os.SEEK_SET)

    def read(self, most: int) -> bytes:
        return os.read(self.handle, min(most, CHUNK))


class DirectoryMedium:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.where = str(root)

    def _path(self, path: str) -> Path:
        return self.root / path

    @contextmanager
    def open(self, path: str, offset: int = 0, validator: str = "") -> Iterator[Incoming | None]:
        with self._explained():
            handle = self._open(path)
        if handle is None:
            yield None
            return
        try:
            with self._explained():
                yield OpenFile(handle, offset, validator)
        finally:
            os.close(handle)

    def _open(self, path: str) -> int | None:
        try:
            # Whatever lies there is not to hold us up, as a pipe would.
            handle = os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            if not self.root.is_dir():
                raise
            return None
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        return None

    def read(self, path: str, limit: int) -> bytes | None:
        with self.open(path) as incoming:
            return None if incoming is None else read_all(incoming, limit)

    def size(self, path: str) -> int | None:
        with self.open(path) as incoming:
            return None if incoming is None else incoming.size

    def write(self, path: str, data: bytes) -> None:
        with self._explained(), self._replacing(path) as handle:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]

    def send(self, path: str, source: Path, meter: Meter) -> None:
        with (
            self._explained(),
            source.open("rb", buffering=0) as reading,
            self._replacing(path) as handle,
        ):
            while count := os.sendfile(handle, reading.fileno(), None, CHUNK):
                programs.refuse_when_stopping()
                meter.add(count)

    @contextmanager
    def _replacing(self, path: str) -> Iterator[int]:
        """A new file, which takes the place of the old one when all of it is on disk."""
        name = Path(path).name
        with self._directory(path, make=True) as directory:
            assert directory is not None
            for left in os.listdir(directory):
                # Nobody else writes it: whoever began this was killed.
                if left.startswith(f".{name}.") and left.endswith(NEW):
                    _unlink(left, directory)
            new = f".{name}.{secrets.token_hex(4)}{NEW}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            handle = os.open(new, flags, RIGHTS, dir_fd=directory)
            try:
                try:
                    os.fchmod(handle, RIGHTS)
                    yield handle
                    os.fsync(handle)
                finally:
                    os.close(handle)
                os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                _unlink(new, directory)
                raise

    @contextmanager
    def _directory(self, path: str, *, make: bool = False) -> Iterator[int | None]:
        """The directory that a file is in, reached without following links: whoever may write to
        a repository could plant some, and have us write elsewhere with our rights."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        handle = os.open(self.root, flags)
        try:
            for reached in reversed(Path(path).parents[:-1]):
                below = self._enter(handle, reached, flags, make=make)
                if below is None:
                    yield None
                    return
                os.close(handle)
                handle = below
            yield handle
        finally:
            os.close(handle)

    def _enter(self, handle: int, path: Path, flags: int, *, make: bool) -> int | None:
        """The directory of that name in the one that is open."""
        try:
            made = False
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path.name, dir_fd=handle)
                    made = True
            below = os.open(path.name, flags | os.O_NOFOLLOW, dir_fd=handle)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise self._link(self.root / path) from error
            raise
        if made:
            os.fchmod(below, DIRECTORY_RIGHTS)
        return below

    def _link(self, path: Path) -> EncampError:
        return EncampError(
            Code.NOT_PERMITTED,
            f"{path} in repository {self.where} is a link or a file, which is not followed.",
            "A repository's own directories and files are no links; whoever keeps it can move it"
            " as a whole.",
        )

    def remove(self, path: str) -> None:
        with self._explained(), self._directory(path) as directory:
            if directory is None:
                return
            _unlink(Path(path).name, directory)
            above = Path(path).parent
            if above.parent.name == "images":
                # The last file of an image takes its directory along.
                with self._directory(str(above)) as images, contextlib.suppress(OSError):
                    os.rmdir(above.name, dir_fd=images)

    def room(self) -> int | None:
        with self._explained():
            found = os.statvfs(self.root)
            return found.f_bavail * found.f_frsize

    @contextmanager
    def sending(self, progress: Progress) -> Iterator[bool]:
        with self.changing(progress):
            yield True

    @contextmanager
    def changing(self, progress: Progress) -> Iterator[None]:
        with self._explained():
            # A link that somebody planted would have us make files elsewhere.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            handle = os.open(self.root / LOCK, flags, RIGHTS)
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    progress.update(f"waiting: somebody else is pushing to {self.where}")
                    if programs.STOPPING.wait(LOOK_AGAIN):
                        programs.refuse_when_stopping()
            yield
        finally:
            os.close(handle)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._explain(error) from error

    def _explain(self, error: OSError) -> EncampError:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return EncampError(
                Code.DISK_FULL,
                f"The disk of repository {self.where} is full.",
                "Make room there and try again; nothing was left half done.",
            )
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return EncampError(
                Code.NOT_PERMITTED,
                f"You may not do that in repository {self.where}: {error.strerror}"
                f" ({error.filename}).",
                "Ask whoever keeps it.",
            )
        if error.errno == errno.ELOOP and error.filename:
            return self._link(Path(os.fsdecode(error.filename)))
        if not self.root.is_dir():
            return EncampError(
                Code.UNREACHABLE,
                f"Repository {self.where} is not there.",
                "Is it mounted? A new repository is an empty directory: make it first.",
                transient=True,
            )
        return EncampError(
            Code.UNREACHABLE,
            f"Repository {self.where} cannot be used: {error.strerror}.",
            "See that it is an ordinary directory in which you may make files.",
            transient=True,
        )


def _unlink(name: str, directory: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
