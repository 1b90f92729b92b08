"""How a long operation tells whoever waits for it how far it is."""

from __future__ import annotations

from typing import Protocol

FIGURES = " · "
"""What follows it in a message changes all the time: a terminal shows it as it comes, a log now
and then."""


class Note(str):
    """What concerns the caller also when the operation is over: it is not replaced by what comes
    after it."""

    __slots__ = ()


class Progress(Protocol):
    """One operation's progress. Called from any thread."""

    def update(self, what: str, fraction: float | None = None) -> None:
        """Say what is being done; `fraction` of the whole operation is done, if that is known."""


class Silent:
    """For callers that nobody watches."""

    def update(self, what: str, fraction: float | None = None) -> None:
        pass
