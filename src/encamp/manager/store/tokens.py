"""Tokens in a table: what each may, and the digest of its secret."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, delete, select

from encamp.manager.store.documents import decoded, document, exact_key
from encamp.manager.store.statements import put
from encamp.manager.store.tables import tokens
from encamp.model.token import Token

TOKENS = msgspec.json.Decoder(Token)


def read_all(connection: Connection) -> list[tuple[Token, bytes]]:
    found = connection.execute(select(tokens.c.id, tokens.c.digest, tokens.c.document)).all()
    digests = {row.id: bytes(row.digest) for row in found}
    told = decoded(TOKENS, ((row.id, row.document) for row in found))
    return [(token, digests[name]) for name, token in told]


def add(connection: Connection, token: Token, digest: bytes) -> None:
    row = {
        "id": exact_key(token.id, "A token's id"),
        "digest": digest,
        "document": document(token, f"Token {token.id}"),
    }
    put(connection, tokens, [row])


def remove(connection: Connection, ids: list[str]) -> None:
    connection.execute(delete(tokens).where(tokens.c.id.in_(ids)))
