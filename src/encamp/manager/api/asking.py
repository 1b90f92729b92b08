"""How a call is answered: by the same answers as at the other door, for whoever the token says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from litestar import Request
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler

from encamp.door.peer import Peer
from encamp.door.questions import Question
from encamp.manager.answering import Answer, answer, answer_once_more, whole_answer
from encamp.manager.api.entry import CALLER
from encamp.manager.api.failures import RefusedError, unknown
from encamp.manager.api.limits import MOST_STREAMS, Limits
from encamp.manager.api.streaming import Format, Streamed, gathered
from encamp.manager.daemon import Manager
from encamp.model.errors import Code, EncampError

A = TypeVar("A", bound=msgspec.Struct)

Call = Request[Any, Any, Any]


class Asking:
    """One call's way to the answers."""

    def __init__(self, manager: Manager, limits: Limits, caller: Peer, accept: str) -> None:
        self.manager = manager
        self.caller = caller
        self.accept = accept
        self._limits = limits

    def items(self, question: Question) -> Answer:
        return answer(self.manager, self.caller, question)

    def items_once_more(self, question: Question) -> Answer:
        return answer_once_more(self.manager, self.caller, question)

    async def all(self, question: Question, expected: type[A]) -> list[A]:
        """All of one type, as is known of the question."""
        return list(cast(Sequence[A], await whole_answer(self.manager, self.caller, question)))

    async def some(self, question: Question, expected: type[A]) -> list[A]:
        """About a thing that the address names: that there is none is not found."""
        try:
            return await self.all(question, expected)
        except EncampError as error:
            raise unknown(error) from error

    async def one(self, question: Question, expected: type[A]) -> A:
        """The same, if it is one."""
        try:
            (found,) = await self.some(question, expected)
        except ValueError as error:
            sentence = "There is not one such thing, but none or several."
            raise unknown(EncampError(Code.USAGE, sentence)) from error
        return found

    async def stream(self, items: Answer, form: Format) -> Streamed:
        """What is refused within a moment is refused with a status of its own."""
        closed = self._open_stream()
        try:
            return await Streamed(items, form, closed, self._check_token).prepared()
        except EncampError as error:
            raise unknown(error) from error

    def stream_at_once(self, begin: Callable[[], Answer], form: Format) -> Streamed:
        """Whatever comes of it is told in its own form."""
        closed = self._open_stream()
        return Streamed(gathered(begin, form.item), form, closed, self._check_token)

    def _open_stream(self) -> Callable[[], None]:
        """One more of this token's; what to call when it is closed."""
        if not self._limits.open_stream(self.caller.token):
            sentence = f"This token has {MOST_STREAMS} streams open already."
            hint = "Close some of them first."
            error = EncampError(Code.NO_ROOM, sentence, hint, transient=True)
            raise RefusedError(429, error, {"Retry-After": "1"})
        closed = False

        def close() -> None:
            nonlocal closed
            if not closed:
                closed = True
                self._limits.close_stream(self.caller.token)

        return close

    def _check_token(self) -> None:
        """What was taken back, or has ended, opens nothing any more: not even what is open."""
        if not self.manager.tokens.is_valid(self.caller.token):
            sentence = "The token is not valid any more: it was revoked, or has ended."
            raise EncampError(Code.NOT_PERMITTED, sentence, "'encamp token create' makes another.")


Asked = NamedDependency[Asking]
"""What handlers declare to be given it."""


def asking(request: Call) -> Asking:
    _refuse_unknown_parameters(request)
    state = request.app.state
    return Asking(
        state.manager,
        state.limits,
        request.scope["state"][CALLER],
        request.headers.get("accept", ""),
    )


def _refuse_unknown_parameters(request: Call) -> None:
    """What is misspelt must not be taken for something that was not said."""
    if not request.scope["query_string"]:
        return
    known = _parameters(request.route_handler)
    for name in request.query_params:
        if name not in known:
            sentence = f"There is no parameter '{name[:64]}' here."
            error = EncampError(Code.USAGE, sentence, "See /v1/openapi.json.")
            raise RefusedError(400, error)


@cache
def _parameters(handler: BaseRouteHandler) -> frozenset[str]:
    """What they are called in a call."""
    fields = handler.parsed_fn_signature.parameters.values()
    return frozenset(
        getattr(field.kwarg_definition, "name", None) or field.name for field in fields
    )
