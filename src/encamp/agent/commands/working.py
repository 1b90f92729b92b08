"""The worker: the process in which a plug-in is called, or that becomes the listed program."""

from __future__ import annotations

import inspect
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import msgspec

from encamp.agent.commands.directory import CommandDirectory, Request
from encamp.agent.commands.family import MARK, die_with
from encamp.agent.commands.plugin import Context
from encamp.home import Home
from encamp.model.errors import Code, EncampError
from encamp.model.program import ListedProgram
from encamp.model.property import LARGEST_VALUE, Value, fits, is_value

LONGEST_PATH = 8192

PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the worker says at its end. A listed program says nothing: its exit code does."""

    value: Value = None
    exit_code: int | None = None
    error: str = ""
    stopped: bool = False
    """It was told to stop, and did."""


class Worker:
    """The process, as its parent sees it. It is made before it is told of a command, so that it can
    be there when one comes. `prepare` is called in it first. `apart`: its standard error does not
    come with its output."""

    def __init__(self, *, prepare: Callable[[], None] | None = None, apart: bool = False) -> None:
        parent = os.getpid()
        self.out, out = os.pipe()
        self.error, error = os.pipe() if apart else (-1, out)
        self.answer, answer = os.pipe()
        self._line, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            self._line.close()
            os.dup2(out, 1)
            os.dup2(error, 2)
            _wait_and_work(its, parent, answer, prepare)
        with suppress(OSError):
            os.setpgid(self.pid, self.pid)
        its.close()
        for end in {out, error, answer}:
            os.close(end)

    def begin(self, directory: CommandDirectory, lock: int) -> None:
        """Tell it what to carry out. It holds the command's lock, too. Raises OSError if it was
        ended while it waited."""
        with self._line:
            socket.send_fds(self._line, [os.fsencode(directory.path)], [lock])


def _wait_and_work(
    line: socket.socket, parent: int, answer: int, prepare: Callable[[], None] | None
) -> NoReturn:
    try:
        os.setpgid(0, 0)
        die_with(parent)
        if prepare is not None:
            prepare()
        path, _, _, _ = socket.recv_fds(line, LONGEST_PATH, 1, socket.MSG_CMSG_CLOEXEC)
        directory = CommandDirectory(Path(os.fsdecode(path)))
        request = directory.read_request() if path else None
        if request is not None:
            os.environ[MARK] = directory.id
            _work(request, directory.home, parent, answer)
    finally:
        os._exit(1)


def _work(request: Request, home: Home, parent: int, answer: int) -> NoReturn:
    """Carry the command out, and end this process, which was made for it."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # What the command makes is not kept as close as what is kept about the command.
        os.umask(0o022)
        if request.program is not None:
            said = _become(request, request.program, parent)
        else:
            said = _call(request, Context(home, request.id, request.issuer))
        _write_all(answer, msgspec.msgpack.encode(said))
        status = 0
    finally:
        # Whatever the plug-in left (threads, an atexit hook) does not hold up the command's end.
        os._exit(status)


def _call(request: Request, context: Context) -> Answer:
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        value = _returned(request, context)
        sys.stdout.flush()
        return Answer(value=value, exit_code=context.exit_code)
    except KeyboardInterrupt:
        return Answer(stopped=True)
    except EncampError as error:
        if error.detail:
            context.write("".join(f"  | {line}\n" for line in error.detail.splitlines()))
        return Answer(error=str(error), exit_code=context.exit_code)
    except BaseException as error:
        import traceback

        context.write(traceback.format_exc())
        if isinstance(error, OSError) and error.strerror:
            where = f" ({error.filename})" if error.filename else ""
            return Answer(error=f"The host could not do it: {error.strerror}{where}.")
        return Answer(error=f"The plug-in made a mistake: {type(error).__name__}: {error}.")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _returned(request: Request, context: Context) -> Value:
    import importlib

    # What is printed travels line by line. Ours were made for the files we were started with.
    sys.stdout = sys.stderr = os.fdopen(1, "w", 1, "utf-8", "replace", closefd=False)
    module, _, name = request.plugin.partition(":")
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    returned = function(context, **request.arguments)
    if inspect.iscoroutine(returned):
        returned = _wait_for(returned)
    _stop_listening()
    return _plain(returned, request)


def _stop_listening() -> None:
    """What is done is done, and said so: for stopping it is too late."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _plain(returned: Any, request: Request) -> Value:
    """What a plug-in returned as what arrives at the other end: structs as mappings, tuples as
    lists."""
    try:
        value: Value = msgspec.msgpack.decode(msgspec.msgpack.encode(returned))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        value = returned
    if not is_value(value) or len(msgspec.msgpack.encode(value)) > LARGEST_VALUE:
        raise EncampError(
            Code.INTERNAL,
            f"What command {request.name} returned is too large, or nothing that can be sent:"
            f" at most {LARGEST_VALUE} bytes travel.",
            "Large results belong into its output, or into a file.",
        )
    if request.returns is not None and value is not None and not fits(value, request.returns):
        raise EncampError(
            Code.INTERNAL,
            f"The plug-in for '{request.name}' returned {type(value).__name__},"
            f" not {request.returns.value} as it says.",
        )
    return value


def _wait_for(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns. It is cancelled when the command is to stop."""
    import asyncio

    async def until_stopped() -> Any:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        returned = await task
        _stop_listening()
        return returned

    try:
        return asyncio.run(until_stopped())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _become(request: Request, program: ListedProgram, parent: int) -> Answer:
    """Turn into the listed program; this returns only if that is not possible."""
    try:
        words = fill_in(program.words, request.arguments)
        variables = {"PATH": PATHS, "LANG": "C.UTF-8", MARK: request.id}
        variables |= _turn_into(program.user, request.name)
        # Whoever changes its user is no longer told of its parent's death.
        die_with(parent)
        os.chdir(program.directory)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execve(words[0], words, {**variables, "ENCAMP_ISSUER": request.issuer})
    except EncampError as error:
        return Answer(error=str(error))
    except OSError as error:
        return Answer(error=f"'{program.words[0]}' cannot be run: {error.strerror}.")


def fill_in(words: tuple[str, ...], arguments: dict[str, Value]) -> list[str]:
    """The words of a program's call. `{name}` is one argument, or as many as a list has; an
    argument that was left out (and has no default) leaves its word out."""
    filled: list[str] = []
    for word in words:
        name = word[1:-1] if word.startswith("{") and word.endswith("}") else ""
        if name not in arguments:
            filled.append(word)
            continue
        value = arguments[name]
        if isinstance(value, list):
            filled += map(_text, value)
        elif value is not None:
            filled.append(_text(value))
    return filled


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _turn_into(user: str | None, command: str) -> dict[str, str]:
    """Give up the agent's rights for those of the user the program is listed with."""
    import pwd

    try:
        entry = pwd.getpwuid(os.geteuid()) if user is None else pwd.getpwnam(user)
    except KeyError:
        raise EncampError(
            Code.CONFIGURATION, f"Command {command} is to run as '{user}', who is unknown here."
        ) from None
    if entry.pw_uid != os.geteuid():
        if os.geteuid() != 0:
            raise EncampError(
                Code.NOT_PERMITTED,
                f"Command {command} is to run as '{user}', but this agent does not run as root.",
            )
        os.initgroups(entry.pw_name, entry.pw_gid)
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name}


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
