"""What tests of the store are made of."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import Connection, text

from encamp.core.actions import Judged, Judgement
from encamp.home import Home
from encamp.manager.store.address import read_address
from encamp.manager.store.connecting import Possession
from encamp.manager.store.store import Store
from encamp.model.command import CommandRecord
from encamp.model.event import Event, EventKind
from encamp.model.job import MachineRequest, User
from encamp.model.request import Request, RequestRecord, RequestState
from encamp.model.size import MIB, Size


class Place(msgspec.Struct, frozen=True):
    where: str
    home: Home

    async def open(self, patience: float = 30.0) -> Store:
        return await Store.open(self.where, self.home, patience=patience)

    def by_hand(self, *statements: str, **parameters: Any) -> list[Any]:
        """What the last of some statements answers, while no manager has the store open."""
        possession = Possession(read_address(self.where, self.home))
        connection: Connection = possession.connect()
        try:
            rows: list[Any] = []
            for statement in statements:
                result = connection.execute(text(statement), parameters)
                rows = list(result.all()) if result.returns_rows else []
            return rows
        finally:
            connection.close()
            possession.close()


def command(id: str, host: str = "node1", **fields: Any) -> CommandRecord:
    usual = CommandRecord(
        id=id, host=host, name="machine.start", issuer="root", issued=1.0, timeout=60.0
    )
    return msgspec.structs.replace(usual, **fields)


def request(
    id: str,
    owner: str = "alice",
    *,
    state: RequestState = RequestState.WAITING,
    changed: float = 1.0,
    ended: float = 0.0,
    **fields: Any,
) -> RequestRecord:
    user = User("alice", 1000, 1000, "alice", (), "/home/alice")
    asked = Request(
        id=id,
        owner=owner,
        submitted=1.0,
        environment="mini",
        size=Size(1, 128 * MIB),
        machine=MachineRequest("mini", user),
    )
    asked = msgspec.structs.replace(asked, **fields)
    return RequestRecord(request=asked, state=state, changed=changed, ended=ended)


def event(sentence: str = "Something happened.", host: str = "node1", **fields: Any) -> Event:
    usual = Event(kind=EventKind.HOST_JOINED, sentence=sentence, host=host)
    return msgspec.structs.replace(usual, **fields)


def judged(trigger: str, at: float = 1.0, **fields: Any) -> Judged:
    usual = Judged(trigger=trigger, at=at, judgement=Judgement.FIRED)
    return msgspec.structs.replace(usual, **fields)
