"""A socket in a directory: made so that nobody sees it half done, and by one daemon at a time.

Beside it lies a lock for as long as the daemon lives. The kernel lets go of it when the daemon
dies, however it dies: that tells a socket that was left behind from one that is answered.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from encamp.home import user_name
from encamp.model.errors import Code, EncampError

BACKLOG = 128
"""Connections that wait to be taken; those who come then wait too."""
FOR_EVERYBODY = 0o666
"""Whoever may enter the directory may ask; what they may ask for is decided by who they are."""


def check_free(path: Path) -> None:
    """Refuse at once what `listening` would refuse, if a daemon answers there now: whoever has to
    get other things ready first need not wait for them in vain."""
    lock = _lock_of(path)
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return  # Nobody does; or it will be said why nobody can.
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _taken(path, fd) from None
    finally:
        os.close(fd)


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A socket of this name that listens until the end of the block, and is gone then."""
    with ExitStack() as held:
        try:
            _check_directory(path.parent)
            held.enter_context(_lock(path))
            listener = held.enter_context(_bound(path))
        except OSError as error:
            raise EncampError(
                Code.NOT_PERMITTED,
                f"Cannot make the socket {path}: {error.strerror}.",
                "Choose another place with 'door:' in site.yaml.",
            ) from error
        yield listener


def _check_directory(directory: Path) -> None:
    """Whoever can write to the directory can put a socket of their own there."""
    if not directory.is_dir():
        directory.mkdir(mode=0o711, parents=True, exist_ok=True)
    found = directory.stat()
    wrong = ""
    if found.st_uid not in {0, os.geteuid()}:
        wrong = f"belongs to {user_name(found.st_uid)}"
    elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        wrong = "can be written to by others"
    if wrong:
        raise EncampError(
            Code.NOT_PERMITTED,
            f"The directory {directory} {wrong}: those who ask here could be deceived.",
            "Choose a directory of the manager's own with 'door:' in site.yaml.",
        )


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    lock = _lock_of(path)
    fd = _locked(lock, path)
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        # While it is held: whoever opened it before finds another, or none, at its name.
        lock.unlink(missing_ok=True)
        os.close(fd)


def _locked(lock: Path, path: Path) -> int:
    while True:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(lock, os.fstat(fd)):
                return fd
        except BlockingIOError:
            error = _taken(path, fd)
            os.close(fd)
            raise error from None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _taken(path: Path, lock: int) -> EncampError:
    holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
    return EncampError(
        Code.WRONG_STATE,
        f"Process {holder or '?'} answers at {path} already.",
        "One manager is enough for a home; 'encamp status' asks it. Set ENCAMP_HOME or"
        " 'door:' in site.yaml to run another.",
    )


@contextmanager
def _bound(path: Path) -> Iterator[socket.socket]:
    if path.exists() and not path.is_socket():
        raise EncampError(
            Code.WRONG_STATE,
            f"{path} is there, and is not a socket.",
            "Remove it, or choose another place with 'door:' in site.yaml.",
        )
    unfinished = path.with_name(f".{path.name}.new")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.setblocking(False)
        unfinished.unlink(missing_ok=True)
        with short(unfinished) as address:
            listener.bind(address)
        unfinished.chmod(FOR_EVERYBODY)
        listener.listen(BACKLOG)
        made = unfinished.stat()
        # Takes the place of one that a dead daemon left there.
        unfinished.rename(path)
        try:
            yield listener
        finally:
            if _is_at(path, made):
                path.unlink()


@contextmanager
def short(path: Path) -> Iterator[str]:
    """The path in a form that fits into the address of a socket (108 bytes), however long it is."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _is_at(path: Path, status: os.stat_result) -> bool:
    with suppress(OSError):
        return os.path.samestat(path.lstat(), status)
    return False
