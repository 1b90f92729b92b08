"""Commands: issuing them to hosts, and what came of them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import delete, get, post
from litestar.openapi import ResponseSpec
from litestar.params import JSONBody, QueryParameter
from litestar.types import ASGIApp

from encamp.door import questions
from encamp.door.questions import LeftOut
from encamp.manager.api.asking import Asked
from encamp.manager.api.failures import documented
from encamp.manager.api.paging import Page, page_of
from encamp.manager.api.routes.site import ALWAYS, NAMED, USUAL, Hosts, Name
from encamp.manager.api.streaming import Bytes
from encamp.model.command import CommandRecord
from encamp.model.recipe import Compression

COMMANDS = ["Commands"]

Last = Annotated[int, QueryParameter(ge=0, le=10_000, description="At most so many, the latest.")]
Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]


class NewCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hosts: Annotated[list[Pattern], msgspec.Meta(min_length=1, max_length=1000)]
    """Names, patterns such as `node*`, `@group`."""
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    arguments: dict[str, Any] = {}
    timeout: Annotated[float, msgspec.Meta(gt=0, le=31_536_000)] | None = None
    """Seconds; None: as the command says."""


class NewMove(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    move: questions.Move
    force: bool = False
    """Remove it also if it is running."""
    image: Annotated[str, msgspec.Meta(max_length=300)] = ""
    """The NAME or NAME:VERSION that it is saved as."""
    compression: Compression = Compression.ZSTD
    """How that image is packed."""


class Issued(msgspec.Struct, frozen=True):
    commands: list[CommandRecord]
    """One for each host."""
    left_out: list[LeftOut] = []
    """Hosts that were meant by a pattern, and that are not there to be told."""


class CommandList(msgspec.Struct, frozen=True):
    items: list[CommandRecord]


@get(
    "/commands",
    tags=COMMANDS,
    responses={**page_of(CommandList), **USUAL},
    operation_id="commands",
)
async def commands(
    asking: Asked,
    host: Hosts = None,
    under_way: Annotated[bool, QueryParameter(description="Only those that are not over.")] = False,
    last: Last = 100,
) -> ASGIApp:
    """Commands of the token's owner, the latest first; an administrator's token shows all."""
    question = questions.AskCommands(hosts=tuple(host or ()), last=last, under_way=under_way)
    return Page(await asking.all(question, CommandRecord))


@post(
    "/commands",
    tags=COMMANDS,
    responses=documented((*ALWAYS, 409, 415)),
    operation_id="issue_command",
)
async def issue_command(asking: Asked, data: JSONBody[NewCommand]) -> Issued:
    """Tell hosts to do something. It is written down, and will be done once, when this returns."""
    question = questions.IssueCommand(
        hosts=tuple(data.hosts),
        name=data.name,
        arguments=data.arguments,
        timeout=data.timeout,
    )
    made, left_out = [], []
    async for item in asking.items(question):
        if isinstance(item, CommandRecord):
            made.append(item)
        elif isinstance(item, LeftOut):
            left_out.append(item)
    return Issued(made, left_out)


@get("/commands/{name:str}", tags=COMMANDS, responses=NAMED, operation_id="command")
async def command(asking: Asked, name: Name) -> CommandRecord:
    """One command, by its id or the beginning of it."""
    return await asking.one(questions.AskCommands(id=name), CommandRecord)


@delete(
    "/commands/{name:str}",
    tags=COMMANDS,
    responses=documented((*ALWAYS, 404, 409)),
    operation_id="cancel_command",
    status_code=200,
)
async def cancel_command(asking: Asked, name: Name) -> CommandRecord:
    """Have a command ended, however far it is."""
    return await asking.one(questions.CancelCommand(id=name), CommandRecord)


@get(
    "/commands/{name:str}/output",
    tags=COMMANDS,
    responses={
        200: ResponseSpec(
            bytes,
            media_type="application/octet-stream",
            description="Its output as it comes, until it is over.",
            generate_examples=False,
        ),
        **NAMED,
    },
    operation_id="command_output",
)
async def command_output(
    asking: Asked,
    name: Name,
    offset: Annotated[int, QueryParameter(ge=0, le=2**53, description="From this byte on.")] = 0,
) -> ASGIApp:
    """What a command prints: as it comes, until the command is over."""
    record = await asking.one(questions.AskCommands(id=name), CommandRecord)
    items = asking.items(questions.FollowCommands(offsets={record.id: offset}))
    return await asking.stream(items, Bytes())


@post(
    "/machines/{name:str}/moves",
    tags=COMMANDS,
    responses=documented((*ALWAYS, 404, 409, 415)),
    operation_id="move_machine",
)
async def move_machine(asking: Asked, name: Name, data: JSONBody[NewMove]) -> CommandRecord:
    """Stop a machine of the token's owner, save it as an image, remove it, and so on, wherever it
    is. The answer is the command by which that is done: what it prints and returns tells more."""
    question = questions.MoveMachine(
        machine=name,
        move=data.move,
        force=data.force,
        image=data.image,
        compression=data.compression,
    )
    return await asking.one(question, CommandRecord)


HANDLERS = (commands, issue_command, command, cancel_command, command_output, move_machine)
