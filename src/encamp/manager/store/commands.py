"""Commands in tables: where each stands, and what it printed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, func, select

from encamp.manager.store.documents import decoded, document, exact_key, key
from encamp.manager.store.log import MOST_NAMES
from encamp.manager.store.statements import Row, add_missing
from encamp.manager.store.tables import commands, outputs
from encamp.model import command as limits
from encamp.model.command import COMMAND_TRANSITIONS, OVER, CommandRecord
from encamp.model.errors import Code, EncampError

LARGEST_OUTPUT = limits.LARGEST_OUTPUT + 1024
"""Bytes of one command's output that are kept, with what its agent says if it was cut; more than
that no honest agent tells, and it is only counted."""
LARGEST_PIECE = 256 << 10
"""Bytes of output in one row."""
FINAL = frozenset(state for state, following in COMMAND_TRANSITIONS.items() if not following)
"""States that nothing follows."""
PAGE = 500

RECORDS = msgspec.json.Decoder(CommandRecord)
COLUMNS = (commands.c.id, commands.c.number, commands.c.output, commands.c.document)


def rows(records: Sequence[CommandRecord], number: int) -> list[Row]:
    """What is written for new commands, counting from `number`."""
    return [
        {
            "id": exact_key(record.id, "A command's id"),
            "number": number + position,
            "host": key(record.host),
            "output": 0,
            **_standing(record),
        }
        for position, record in enumerate(records)
    ]


def _standing(record: CommandRecord) -> dict[str, Any]:
    return {
        "state": record.state.value,
        "over_since": (record.changed or record.issued) if record.state in OVER else None,
        "document": document(record, f"Command {record.id}"),
    }


def next_number(connection: Connection) -> int:
    return int(connection.scalar(select(func.max(commands.c.number))) or 0) + 1


def add(connection: Connection, new: Sequence[Row]) -> int:
    """The number of the latest command that is in the store then."""
    add_missing(connection, commands, new)
    return next_number(connection) - 1


def _records(found: Sequence[Any]) -> list[CommandRecord]:
    arrived = {row.id: row.output for row in found}
    told = decoded(RECORDS, ((row.id, row.document) for row in found))
    return [msgspec.structs.replace(record, output=arrived[name]) for name, record in told]


LOOKED_AT, LOOKED_THROUGH = 100, 20_000
"""Commands among which those of one issuer are looked for: at a time, and at most."""


def exactly(connection: Connection, command_id: str) -> CommandRecord:
    query = select(*COLUMNS).where(commands.c.id == key(command_id))
    found = _records(connection.execute(query).all())
    if not found:
        raise unknown(command_id)
    return found[0]


def beginning(connection: Connection, prefix: str, issuer: str = "") -> CommandRecord:
    """The one whose id begins so. Of one issuer, if one is given: of others' it is not even said
    that they are there."""
    start = key(prefix)
    query = select(*COLUMNS).where(commands.c.id < start + "\U0010ffff").order_by(commands.c.id)
    size = LOOKED_AT if issuer else 3
    rows = connection.execute(query.where(commands.c.id >= start).limit(size)).all()
    found = [record for record in _records(rows) if issuer in ("", record.issuer)]
    looked = len(rows)
    while issuer and len(found) < 2 and len(rows) == size and looked < LOOKED_THROUGH:
        rows = connection.execute(query.where(commands.c.id > rows[-1].id).limit(size)).all()
        found += [record for record in _records(rows) if record.issuer == issuer]
        looked += len(rows)
    whole = [record for record in found if record.id == prefix]
    if not found or not prefix:
        raise unknown(prefix)
    if len(found) > 1 and not whole:
        raise EncampError(
            Code.USAGE,
            f"Several commands have ids that begin with '{prefix}', such as {found[0].id} and "
            f"{found[1].id}.",
            "Write more of the id.",
        )
    return (whole or found)[0]


def unknown(command_id: str) -> EncampError:
    return EncampError(
        Code.USAGE,
        f"There is no command '{command_id[:64]}'.",
        "See 'encamp command ls' for those that are remembered.",
    )


def move(connection: Connection, record: CommandRecord) -> CommandRecord:
    """Never backwards: what may not follow is left aside. What the command is stays as issued."""
    present = exactly(connection, record.id)
    repeated = record.state is present.state and present.state not in FINAL
    if record.state not in COMMAND_TRANSITIONS[present.state] and not repeated:
        return present
    moved = msgspec.structs.replace(
        record,
        host=present.host,
        name=present.name,
        arguments=present.arguments,
        issuer=present.issuer,
        issued=present.issued,
        timeout=present.timeout,
        output=present.output,
    )
    change = commands.update().where(commands.c.id == record.id).values(**_standing(moved))
    connection.execute(change)
    return moved


def latest(
    connection: Connection, hosts: Collection[str], before: int | None, most: int
) -> tuple[list[CommandRecord], int | None]:
    """Some, the latest first, and the number to go on before (none: that is all)."""
    query = select(*COLUMNS).order_by(commands.c.number.desc()).limit(most)
    if before is not None:
        query = query.where(commands.c.number < before)
    if 0 < len(hosts) <= MOST_NAMES:
        query = query.where(commands.c.host.in_([key(host) for host in hosts]))
    found = connection.execute(query).all()
    wanted = [record for record in _records(found) if not hosts or record.host in hosts]
    return wanted, found[-1].number if len(found) == most else None


def under_way(connection: Connection, after: int) -> tuple[list[CommandRecord], int | None]:
    """Some, the oldest first, and the number to go on after."""
    query: Select[Any] = select(*COLUMNS).where(
        commands.c.over_since.is_(None), commands.c.number > after
    )
    found = connection.execute(query.order_by(commands.c.number).limit(PAGE)).all()
    return _records(found), found[-1].number if len(found) == PAGE else None


def these(connection: Connection, ids: Sequence[str]) -> list[CommandRecord]:
    query = select(*COLUMNS).where(commands.c.id.in_([key(name) for name in ids]))
    return _records(connection.execute(query).all())


def add_output(connection: Connection, command_id: str, offset: int, piece: bytes) -> int:
    row = commands.c.id == key(command_id)
    present = connection.scalar(select(commands.c.output).where(row))
    if present is None:
        raise unknown(command_id)
    if not 0 <= offset <= present:
        raise EncampError(
            Code.WRONG_STATE,
            f"Output of command {command_id} is missing: {present} bytes of it are here, "
            f"and a piece came that begins at {offset}.",
            f"Tell it from byte {present} on.",
            transient=True,
        )
    new = piece[present - offset :]
    if not new:
        return int(present)
    keep = new[: max(0, LARGEST_OUTPUT - present)]
    add_missing(
        connection,
        outputs,
        [
            {
                "command": command_id,
                "start": present + start,
                "piece": keep[start : start + LARGEST_PIECE],
            }
            for start in range(0, len(keep), LARGEST_PIECE)
        ],
    )
    connection.execute(commands.update().where(row).values(output=present + len(new)))
    return int(present) + len(new)


def output(connection: Connection, command_id: str, offset: int, most: int) -> bytes:
    """What is there from `offset` on."""
    offset, most = max(0, min(offset, LARGEST_OUTPUT)), max(0, min(most, LARGEST_OUTPUT))
    query = (
        select(outputs.c.start, outputs.c.piece)
        .where(
            outputs.c.command == key(command_id),
            outputs.c.start > offset - LARGEST_PIECE,
            outputs.c.start < offset + most,
        )
        .order_by(outputs.c.start)
    )
    found = connection.execute(query).all()
    if not found:
        exactly(connection, command_id)
        return b""
    whole = b"".join(bytes(piece) for _, piece in found)
    skip = offset - found[0].start
    return whole[skip : skip + most]
