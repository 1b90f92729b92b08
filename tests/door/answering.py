"""Answerers for the tests of doors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from encamp.door.peer import Peer
from encamp.door.questions import AskCommands, AskEvents, AskHosts, AskStatus, Question, Status
from encamp.model.errors import Code, EncampError
from encamp.model.event import Event, EventKind
from encamp.model.host import Host

LONG = "x" * 10_000


class Answering:
    """Answers as the tests need it, and remembers who asked and which answers have ended."""

    def __init__(self) -> None:
        self.peers: list[Peer] = []
        self.told = 0
        self.ended = asyncio.Event()

    async def __call__(self, peer: Peer, question: Question) -> AsyncIterator[msgspec.Struct]:
        self.peers.append(peer)
        match question:
            case AskStatus():
                yield status(peer.user)
            case AskHosts():
                for name in question.hosts:
                    yield Host(name=name)
                if "broken" in question.hosts:
                    raise EncampError(
                        Code.NO_ROOM, "Broken.", "Mend it.", transient=True, detail="cogs"
                    )
                if "mistaken" in question.hosts:
                    raise ValueError("seven")
            case AskEvents(follow=True):
                try:
                    while True:
                        self.told += 1
                        yield Event(number=self.told, kind=EventKind.NOTIFICATION, sentence=LONG)
                finally:
                    self.ended.set()
            case AskCommands():
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    self.ended.set()
            case _:
                raise AssertionError(question)


def status(site: str) -> Status:
    return Status(
        site=site,
        version="1",
        instance="i",
        started=0.0,
        hosts={"joined": 1},
        machines=0,
        commands_under_way=0,
        triggers=0,
        store="",
        messages=0,
    )
