"""What is on disk of one command, and in which order it comes there.

    request   written before the manager is told that the command was taken
    begun     the same file, renamed by the process that carries the command out, before it does
              anything: whoever finds it never begins again
    output    what the command has printed so far
    progress  how far it is with a machine, if it makes one
    meet      where clients speak with it, if it has any
    kept      a directory with what it leaves for its owner, if it does
    cancel    somebody wants it to stop
    result    how it ended; written whole or not at all
    reserve   room on the disk for the result, claimed at the beginning
    lock      held by that process for as long as it or its worker lives

From these alone follows what to do with a command after any crash. Without `begun` it has not
begun, and will be. With `begun`, without `result`: it is under way if the lock is held, and lost
if it is not.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from encamp.agent.commands.stage import Stage, read_stage
from encamp.home import Home
from encamp.model.command import CommandState
from encamp.model.errors import Code, EncampError
from encamp.model.program import ListedProgram
from encamp.model.property import Value, ValueKind
from encamp.workplace import remove_tree

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""It names a directory."""

OWN = "bait."
"""What the ids of commands begin with that are the agent's own, and no manager's."""

RESERVED = 8 << 10
"""Bytes kept for the result, so that it can be told even if the disk fills up meanwhile."""

LONGEST_REASON = 2000
"""Characters."""


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that the process needs to know which carries a command out."""

    id: str
    name: str
    arguments: dict[str, Value]
    issuer: str
    timeout: float
    received: float
    plugin: str = ""
    """`module:function` of the plug-in; none for a listed program."""
    program: ListedProgram | None = None
    returns: ValueKind | None = None
    internal: bool = False
    """It waits for no turn."""


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    state: CommandState
    reason: str = ""
    started: float = 0.0
    ended: float = 0.0
    value: Value = None
    exit_code: int | None = None
    stage: Stage = Stage()
    """How far it had come with a machine."""
    cut_short: bool = False
    """The process in which it worked ended without a word, and may have left something."""


REQUESTS = msgspec.msgpack.Decoder(Request)
RESULTS = msgspec.msgpack.Decoder(Result)


def is_own(id: str) -> bool:
    return id.startswith(OWN)


class CommandDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.request = path / "request"
        self.begun = path / "begun"
        self.output = path / "output"
        self.progress = path / "progress"
        self.kept = path / "kept"
        self.cancel = path / "cancel"
        self.result = path / "result"
        self.reserve = path / "reserve"
        self.lock = path / "lock"
        self.log = path / "log"
        """What the process itself had to complain about, if it could not even begin."""

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def home(self) -> Home:
        """The agent's, whose command it is."""
        return Home(self.path.parent.parent.parent)

    def journal(self, request: Request) -> None:
        """Write a request down; it is on the disk when this returns, or nothing is."""
        new = self.path / "request.new"
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            _claim_room(self.reserve)
            write(new, msgspec.msgpack.encode(request))
            new.rename(self.request)
            _sync(self.path)
            _sync(self.path.parent)
        except OSError as error:
            self.remove()
            raise not_written(error, f"command {self.id}") from error

    def read_request(self) -> Request | None:
        """The request, begun or not; None if it was never written down whole."""
        for path in (self.request, self.begun, self.request, self.begun):
            # It may be renamed while we look.
            try:
                return REQUESTS.decode(path.read_bytes())
            except FileNotFoundError:
                continue
            except (OSError, msgspec.MsgspecError):
                return None
        return None

    def begin(self, now: float) -> bool:
        """Say that the command begins; false if somebody has said so before. Takes no room."""
        try:
            os.utime(self.request, (now, now))
            self.request.rename(self.begun)
        except FileNotFoundError:
            return False
        _sync(self.path)
        return True

    def started(self) -> float:
        """When it began; 0 if it has not."""
        try:
            return self.begun.stat().st_mtime
        except OSError:
            return 0.0

    def printed(self) -> int:
        """Bytes of output so far."""
        try:
            return self.output.stat().st_size
        except OSError:
            return 0

    def read_output(self, offset: int, most: int) -> bytes:
        try:
            fd = os.open(self.output, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return b""
        try:
            return os.pread(fd, most, offset)
        finally:
            os.close(fd)

    def end(self, result: Result) -> None:
        """Write the result; the room for it was claimed before. Only for the lock's holder."""
        result = msgspec.structs.replace(result, stage=read_stage(self.progress))
        if len(result.reason) > LONGEST_REASON:
            shortened = f"{result.reason[:LONGEST_REASON]}..."
            result = msgspec.structs.replace(result, reason=shortened)
        try:
            overwrite(self.reserve, msgspec.msgpack.encode(result))
        except OSError as error:
            reason = f"{not_written(error, 'its result').sentence} {result.reason}".rstrip()
            state = CommandState.FAILED if result.state is CommandState.DONE else result.state
            less = msgspec.structs.replace(result, state=state, reason=reason, value=None)
            overwrite(self.reserve, msgspec.msgpack.encode(less))
        self.reserve.rename(self.result)
        _sync(self.path)

    def read_result(self) -> Result | None:
        try:
            return RESULTS.decode(self.result.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            return Result(state=CommandState.LOST, reason=f"Its result cannot be read: {error}.")

    def complaint(self) -> str:
        """The last that its process itself had to say, which is nothing unless it failed."""
        try:
            said = self.log.read_text(errors="replace").strip()
        except OSError:
            return ""
        return said.splitlines()[-1] if said else ""

    def ask_to_stop(self) -> None:
        try:
            self.cancel.touch(mode=0o600)
            _sync(self.path)
        except OSError as error:
            raise not_written(error, f"that command {self.id} is to stop") from error

    def remove(self) -> None:
        """Remove all there is of it; the directory last, so that what is left can be removed."""
        try:
            for entry in list(os.scandir(self.path)):
                if entry.is_dir(follow_symlinks=False):
                    remove_tree(Path(entry.path))
                else:
                    Path(entry.path).unlink()
            self.path.rmdir()
        except FileNotFoundError:
            pass


@contextmanager
def held(path: Path) -> Iterator[int | None]:
    """Hold a lock, unless somebody else does: then this is None. Whoever is given the descriptor
    holds it, too."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield fd
    finally:
        os.close(fd)


def not_written(error: OSError, what: str) -> EncampError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    why = "the disk of this host is full" if full else str(error.strerror)
    return EncampError(
        Code.DISK_FULL,
        f"Could not write down {what}: {why}.",
        "Make room there and try again." if full else "",
        transient=True,
    )


def _claim_room(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.posix_fallocate(fd, 0, RESERVED)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            os.write(fd, bytes(RESERVED))
    finally:
        os.close(fd)


def overwrite(path: Path, data: bytes) -> None:
    """Write into room that was claimed before, which is given back only afterwards."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _write_all(fd, data)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)


def write(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _sync(directory: Path) -> None:
    """Names are on the disk only once their directory is."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
