"""Requests in a table: what is wanted, and how far each has come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, func, select

from encamp.manager.store.documents import decoded, document, exact_key, key
from encamp.manager.store.statements import Row, add_missing
from encamp.manager.store.tables import requests
from encamp.model.errors import Code, EncampError
from encamp.model.request import REQUEST_OVER, RequestRecord, RequestState

PAGE = 2000
"""Read at once; others get a turn in between."""

RECORDS = msgspec.json.Decoder(RequestRecord)
COLUMNS = (requests.c.id, requests.c.number, requests.c.document)


def rows(records: Sequence[RequestRecord], number: int) -> list[Row]:
    """What is written for new requests, counting from `number`."""
    return [
        {
            "id": exact_key(record.request.id, "A request's id"),
            "number": number + position,
            "owner": key(record.request.owner),
            "label": key(record.request.label),
            **_standing(record),
        }
        for position, record in enumerate(records)
    ]


def changes(records: Sequence[RequestRecord]) -> list[Row]:
    """What is written for requests that have got on."""
    return [{"known_by": record.request.id, **_standing(record)} for record in records]


def _standing(record: RequestRecord) -> dict[str, Any]:
    over = record.state in REQUEST_OVER
    return {
        "state": record.state.value,
        "over_since": (record.ended or record.changed) if over else None,
        "document": document(record, f"Request {record.request.id}"),
    }


def next_number(connection: Connection) -> int:
    return int(connection.scalar(select(func.max(requests.c.number))) or 0) + 1


def add(connection: Connection, new: Sequence[Row]) -> None:
    add_missing(connection, requests, new)


def write(connection: Connection, changed: Sequence[Row]) -> None:
    """Whose they are, and their places in the list, stay."""
    if changed:
        statement = requests.update().where(requests.c.id == bindparam("known_by"))
        statement = statement.values(
            state=bindparam("state"),
            over_since=bindparam("over_since"),
            document=bindparam("document"),
        )
        connection.execute(statement, list(changed))


def _records(found: Sequence[Any]) -> list[RequestRecord]:
    return [record for _, record in decoded(RECORDS, ((row.id, row.document) for row in found))]


def beginning(connection: Connection, name: str, owner: str) -> RequestRecord:
    """The one of this id; else the latest of this label; else the one whose id begins so. Of one
    owner, if one is given: of others' it is not even said that they are there. Without, a label
    that several owners have given stands for none of theirs: anybody can choose another's."""
    start = key(name)
    query = select(*COLUMNS).order_by(requests.c.id).limit(3)
    query = query.where(requests.c.id >= start, requests.c.id < start + "\U0010ffff")
    # Said twice, since the index of labels has only those that are some.
    labelled = select(*COLUMNS).where(requests.c.label == start, requests.c.label != "")
    labelled = labelled.order_by(requests.c.number.desc()).limit(1)
    anybodys = labelled
    if owner:
        query = query.where(requests.c.owner == key(owner))
        labelled = labelled.where(requests.c.owner == key(owner))
    found = _records(connection.execute(query).all()) if start else []
    whole = [record for record in found if record.request.id == name]
    called = _records(connection.execute(labelled).all()) if start and not whole else []
    if called and not owner:
        others = requests.c.owner != key(called[0].request.owner)
        called += _records(connection.execute(anybodys.where(others)).all())
    if len(called) > 1:
        jobs = " and ".join(f"{one.request.id} of {one.request.owner}" for one in called)
        raise EncampError(
            Code.USAGE,
            f"Several users have a job labelled '{start[:64]}': {jobs}.",
            "Write the id.",
        )
    if whole or called or len(found) == 1:
        return (whole or called or found)[0]
    if found:
        raise EncampError(
            Code.USAGE,
            f"Several jobs have ids that begin with '{start[:64]}', such as {found[0].request.id}"
            f" and {found[1].request.id}.",
            "Write more of the id.",
        )
    raise EncampError(
        Code.USAGE,
        f"There is no job '{start[:64]}'.",
        "See 'encamp jobs' for those that are remembered.",
    )


def latest(
    connection: Connection, owner: str, before: int | None, most: int
) -> tuple[list[RequestRecord], int | None]:
    """Some, the latest first, and the number to go on before (none: that is all)."""
    query = select(*COLUMNS).order_by(requests.c.number.desc()).limit(most)
    if owner:
        query = query.where(requests.c.owner == key(owner))
    if before is not None:
        query = query.where(requests.c.number < before)
    found = connection.execute(query).all()
    return _records(found), found[-1].number if len(found) == most else None


def under_way(connection: Connection, after: int) -> tuple[list[RequestRecord], int | None]:
    """Some that are not over, the oldest first, and the number to go on after."""
    query = select(*COLUMNS).where(requests.c.over_since.is_(None), requests.c.number > after)
    found = connection.execute(query.order_by(requests.c.number).limit(PAGE)).all()
    return _records(found), found[-1].number if len(found) == PAGE else None


def lost(connection: Connection, after: int) -> tuple[list[RequestRecord], int | None]:
    """Some that were given up for lost, and the number to go on after."""
    query = select(*COLUMNS).where(
        requests.c.state == RequestState.LOST.value, requests.c.number > after
    )
    found = connection.execute(query.order_by(requests.c.number).limit(PAGE)).all()
    return _records(found), found[-1].number if len(found) == PAGE else None
