"""The one error type. Libraries raise it; only the command line prints it and exits with it."""

from __future__ import annotations

import enum


class Code(enum.Enum):
    """What went wrong, in one word. The value is the exit code of the command line."""

    USAGE = 64
    """An option or argument makes no sense."""
    CORRUPT = 65
    """An image or a template is damaged on disk."""
    INPUT_MISSING = 66
    """A file or directory of the host that the request names is not there or cannot be read."""
    UNKNOWN_ENVIRONMENT = 67
    """No environment of that name."""
    UNKNOWN_MACHINE = 68
    """No machine of that id or name (or it belongs to somebody else)."""
    PROGRAM_MISSING = 69
    """A program Encamp needs is not installed."""
    INTERNAL = 70
    """A mistake of Encamp's own."""
    NO_ANSWER = 71
    """The guest never answered."""
    MACHINE_LOST = 72
    """The machine died under the command."""
    BUILD_FAILED = 73
    """An image could not be built."""
    DISK_FULL = 74
    """The host's disk is full, or could not be read or written."""
    NO_ROOM = 75
    """The host has no memory, processor or disk left for another machine; later it may."""
    PROTOCOL = 76
    """The guest said something that makes no sense."""
    NOT_PERMITTED = 77
    """The object belongs to somebody else, or the system refused the right."""
    CONFIGURATION = 78
    """A configuration or description file is wrong."""
    WRONG_STATE = 79
    """The object is in a state that does not allow this."""
    COPY_FAILED = 80
    """A file could not be copied into or out of a machine."""
    UNREACHABLE = 81
    """A repository could not be reached, or broke off; later it may answer."""
    UNTRUSTED = 82
    """An image, or its name, is not signed by anybody whom this host is told to trust; or nobody
    vouches for a manager's certificate."""
    NOT_READY = 83
    """The guest answered, but what the environment calls ready did not come about in time."""
    COMMAND_FAILED = 84
    """A command that was sent to hosts was carried out and went wrong on one of them."""
    NOT_BEGUN = 85
    """A request had not begun after the longest time that it was to wait; it was withdrawn."""
    TIMEOUT = 124
    """The time limit the request set has passed."""


class EncampError(Exception):
    """What is wrong, what to do about it, and whether trying again can help."""

    def __init__(
        self,
        code: Code,
        sentence: str,
        hint: str = "",
        *,
        transient: bool = False,
        detail: str = "",
    ) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence
        self.hint = hint
        self.transient = transient
        self.detail = detail
        """What another program said, for example the last lines of a console."""

    def __reduce__(self) -> tuple[object, ...]:
        """So that it can cross from one process to another."""
        return _remake, (self.code, self.sentence, self.hint, self.transient, self.detail)

    def __str__(self) -> str:
        return f"{self.sentence} {self.hint}".rstrip()


def _remake(code: Code, sentence: str, hint: str, transient: bool, detail: str) -> EncampError:
    return EncampError(code, sentence, hint, transient=transient, detail=detail)
