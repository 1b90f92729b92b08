"""Tokens and the audit log. All of it needs the scope `administer`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from litestar import delete, get, post
from litestar.params import JSONBody, QueryParameter
from litestar.types import ASGIApp

from encamp.door import questions
from encamp.manager.api.asking import Asked
from encamp.manager.api.failures import documented
from encamp.manager.api.paging import Page, page_of
from encamp.manager.api.routes.commands import Last
from encamp.manager.api.routes.events import Since
from encamp.manager.api.routes.site import ALWAYS, NAMED, USUAL, Name
from encamp.model.audit import AuditEntry
from encamp.model.token import OWNER, NewToken, Scope, Token

ADMINISTRATION = ["Administration"]


class TokenWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    owner: Annotated[str, msgspec.Meta(pattern=f"^{OWNER}$")]
    """Who it speaks for."""
    scope: Scope
    lifetime: Annotated[float, msgspec.Meta(ge=1, le=315_360_000)]
    """Seconds until it ends."""
    label: Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    """What it is for: one line."""


class TokenList(msgspec.Struct, frozen=True):
    items: list[Token]


class AuditList(msgspec.Struct, frozen=True):
    items: list[AuditEntry]


@get("/tokens", tags=ADMINISTRATION, responses=USUAL, operation_id="tokens")
async def tokens(asking: Asked) -> TokenList:
    """All tokens that are valid."""
    return TokenList(await asking.all(questions.AskTokens(), Token))


@post(
    "/tokens",
    tags=ADMINISTRATION,
    responses=documented((*ALWAYS, 415)),
    operation_id="create_token",
)
async def create_token(asking: Asked, data: JSONBody[TokenWanted]) -> NewToken:
    """Make a token. Its secret is told once."""
    question = questions.CreateToken(
        owner=data.owner, scope=data.scope, label=data.label, lifetime=data.lifetime
    )
    (made,) = await asking.all(question, NewToken)
    return made


@delete(
    "/tokens/{name:str}",
    tags=ADMINISTRATION,
    responses=NAMED,
    operation_id="revoke_token",
    status_code=200,
)
async def revoke_token(asking: Asked, name: Name) -> Token:
    """Take a token back: it opens nothing from now on."""
    return await asking.one(questions.RevokeToken(id=name), Token)


@get(
    "/audit",
    tags=ADMINISTRATION,
    responses={**page_of(AuditList), **USUAL},
    operation_id="audit",
)
async def audit(
    asking: Asked,
    since: Since = 0,
    last: Last = 100,
    who: Annotated[str, QueryParameter(max_length=300, description="Only what they did.")] = "",
) -> ASGIApp:
    """Who changed what, the oldest first."""
    question = questions.AskAudit(since=since, last=last, who=who)
    return Page(await asking.all(question, AuditEntry))


HANDLERS = (tokens, create_token, revoke_token, audit)
