"""A manager's part in requests, as far as one agent needs it: claim, begin, hear how it ends."""

from __future__ import annotations

import itertools
import os
from typing import Any

import msgspec

from encamp.agent.caller import caller
from encamp.agent.commands.supervising import Commands
from encamp.bus.messages import Claim, Execute
from encamp.home import user_name
from encamp.meeting.tickets import digest
from encamp.model.job import Command, Job, MachineRequest
from encamp.model.request import PartResult, Request, claim_id
from encamp.model.size import MIB, Size
from tests.agent.commands.listening import Asker, Heard

NUMBERS = itertools.count(1)
SIZE = Size(1, 128 * MIB, 0)
SECRET = "open sesame"


def request(
    *words: str, owner: str = "", detached: bool = True, size: Size = SIZE, **more: Any
) -> Request:
    """For a job of these words; without any, for a machine."""
    machine = MachineRequest(environment="mini", owner=caller())
    job = Job(machine=machine, command=Command(arguments=words), **more) if words else None
    return Request(
        id=f"r{os.getpid()}-{next(NUMBERS)}",
        owner=owner or user_name(os.geteuid()),
        submitted=0.0,
        environment="mini",
        size=size,
        job=job,
        machine=machine,
        detached=detached,
    )


def id_of(wanted: Request) -> str:
    return claim_id(wanted.id, 0, 1)


def claim(wanted: Request, seconds: float = 60.0) -> Claim:
    return Claim(
        id=id_of(wanted),
        owner=wanted.owner,
        environment=wanted.environment,
        described=wanted.described is not None,
        own=wanted.own,
        size=wanted.size,
        seconds=seconds,
    )


def execute(wanted: Request, timeout: float = 600.0) -> Execute:
    return Execute(
        id=id_of(wanted),
        name="request.run",
        arguments={
            "request": msgspec.json.decode(msgspec.json.encode(wanted)),
            "number": 0,
            "ticket": digest(SECRET),
        },
        issuer=wanted.owner,
        timeout=timeout,
    )


async def begin(commands: Commands, wanted: Request) -> str:
    """Claim and begin; returns the command's id."""
    await commands.claim(claim(wanted))
    await commands.execute(execute(wanted))
    return id_of(wanted)


def result_of(heard: Heard) -> PartResult:
    assert heard.value is not None, heard.reason
    return msgspec.convert(heard.value, PartResult)


async def run(asker: Asker, commands: Commands, wanted: Request) -> PartResult:
    return result_of(await asker.until_over(commands, await begin(commands, wanted)))
