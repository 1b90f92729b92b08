"""`encamp command`: telling hosts to do something, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.model.command import CommandDefinition, CommandRecord
    from encamp.model.host import Host

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LinesOfJson = Annotated[bool, typer.Option("--json", help="Print JSON, one line for each.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Or its beginning.", show_default=False)]
HostOption = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="PATTERN", help="Only on these hosts.", show_default=False),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Commands: what hosts can be told to do, and what came back.")
    group.command("ls")(command_ls)
    group.command("show")(command_show)
    group.command("send")(command_send)
    group.command("output")(command_output)
    group.command("cancel")(command_cancel)
    group.command("offered")(command_offered)
    app.add_typer(group, name="command")


def command_ls(
    host: HostOption = None,
    last: Annotated[
        int, typer.Option("--last", "-n", metavar="N", min=1, help="At most so many.")
    ] = 50,
    under_way: Annotated[
        bool, typer.Option("--under-way", help="Only those that are not over.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the commands that were issued, the latest first.

    By whom, to which host, and how they ended.

    Example: encamp command ls --under-way --host 'node*'
    """
    from encamp.cli.asking import asked
    from encamp.cli.listing import show_list
    from encamp.cli.machines import print_json
    from encamp.cli.tables import SHORT_ID, ago
    from encamp.door.questions import AskCommands
    from encamp.model.command import CommandRecord

    question = AskCommands(hosts=tuple(host or ()), last=last, under_way=under_way)
    found = asked(question, CommandRecord)
    if as_json:
        print_json(found)
        return
    columns = ("id", "host", "command", "by", "issued", "state", "took", "reason")
    rows = [
        (
            record.id[:SHORT_ID],
            record.host,
            record.name,
            record.issuer,
            ago(record.issued),
            record.state.value,
            took(record),
            record.reason,
        )
        for record in found
    ]
    show_list(columns, rows, below=("reason", "by"))


def command_show(id: Id, as_json: AsJson = False) -> None:
    """Show a command: who issued it, where, when, what came back."""
    from encamp.cli.machines import print_json
    from encamp.cli.tables import moment, show, table
    from encamp.cli.values import shortened, value_text

    record = one(id)
    if as_json:
        print_json(record)
        return
    facts = {
        "id": record.id,
        "command": record.name,
        "host": record.host,
        **{f"  {key}": value_text(value) for key, value in record.arguments.items()},
        "issued": f"{moment(record.issued)} by {record.issuer}",
        "state": f"{record.state.value}: {record.reason}" if record.reason else record.state.value,
        "since": moment(record.changed or record.issued),
        "took": took(record),
        "time limit": f"{record.timeout:g}s",
        "returned": "" if record.value is None else value_text(record.value),
        "exit code": "" if record.exit_code is None else str(record.exit_code),
        "output": f"{record.output} bytes: 'encamp command output {record.id[:8]}'"
        if record.output
        else "",
    }
    made = table("", "")
    made.show_header = False
    for key, value in facts.items():
        if value:
            made.add_row(key, shortened(value))
    show(made)


def command_send(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="HOST... NAME [KEY=VALUE]...",
            help="Hosts (names, patterns, @group), the command, and its arguments.",
            show_default=False,
        ),
    ],
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="TIME", help="How long it may take.", show_default=False),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Do not wait: print the ids of the commands.")
    ] = False,
    as_json: LinesOfJson = False,
) -> int:
    """Tell hosts to do something, and wait for what comes back.

    Shows output as it comes, and then what is returned. Ends with 0 if it was done on all hosts.
    Otherwise with 84 if it failed on one, 124 if it took too long, 77 if it was refused, 79 if it
    was cancelled, 81 if its host was lost. Ctrl-C cancels the command where it runs; a second one
    leaves at once.

    Of hosts that a pattern or a group means, those that are not joined are left out, and it is said
    which; one that is named by its own name has to be there.

    'encamp command offered' lists what hosts offer. What a value means is decided by the type of
    the parameter: 3, true, text, [1, 2], {"a": 1}.

    Example: encamp command send node7 machine.start environment=debian12 memory=2G

    Example: encamp command send '@workers' image.pull image=debian12 --timeout 20m
    """
    from encamp.cli.options import parse_duration
    from encamp.cli.sending import issue, print_issued, wait_for_all
    from encamp.door.questions import IssueCommand

    hosts, name, arguments = understood(words)
    records = issue(
        IssueCommand(
            hosts=hosts,
            name=name,
            arguments=dict(arguments),
            timeout=parse_duration(timeout) if timeout else None,
            texts=True,
        )
    )
    if detach:
        print_issued(records, as_json=as_json)
        return 0
    return wait_for_all(records, as_json=as_json)


def understood(words: list[str]) -> tuple[tuple[str, ...], str, dict[str, str]]:
    """Hosts, the command's name and its arguments, as they stand on a command line."""
    first = next((place for place, word in enumerate(words) if "=" in word), len(words))
    if first < 2:
        raise EncampError(
            Code.USAGE,
            "A host and a command have to be named before the arguments.",
            "For example: encamp command send node7 machine.stop machine=work",
        )
    arguments: dict[str, str] = {}
    for word in words[first:]:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise EncampError(
                Code.USAGE,
                f"'{word}' is not an argument: those look like KEY=VALUE.",
                "Hosts and the command's name come first.",
            )
        if key in arguments:
            raise EncampError(Code.USAGE, f"The argument '{key}' is given twice.")
        arguments[key] = value
    return tuple(words[: first - 1]), words[first - 1], arguments


def command_output(
    id: Id,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the command is over.")
    ] = False,
    as_json: LinesOfJson = False,
) -> None:
    """Print what a command has put out, as it came.

    Example: encamp command output 3f2a --follow
    """
    from encamp.cli.sending import print_output

    print_output(one(id), follow=follow, as_json=as_json)


def command_cancel(id: Id, as_json: AsJson = False) -> None:
    """Stop a command that is waiting or running.

    Of one that is over, its end is told, with code 79.
    """
    from encamp.cli.asking import asked_one
    from encamp.cli.machines import print_json
    from encamp.door.questions import CancelCommand
    from encamp.model.command import CommandRecord

    record = asked_one(CancelCommand(id=id), CommandRecord)
    if as_json:
        print_json(record)
    else:
        print(record.id)


def command_offered(
    host: Annotated[
        list[str] | None,
        typer.Argument(metavar="[HOST]...", help="Names, patterns or @group.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List what hosts offer to do, with parameters.

    Example: encamp command offered node7
    """
    from encamp.cli.asking import asked, no_host
    from encamp.cli.machines import print_json
    from encamp.door.questions import AskHosts
    from encamp.model.host import Host

    found = asked(AskHosts(hosts=tuple(host or ())), Host)
    if not found:
        raise no_host(host or [])
    if as_json:
        print_json({one.name: one.commands for one in found})
    else:
        _print_offered(found)


def _print_offered(hosts: list[Host]) -> None:
    """A command that several hosts offer in the same way is told once."""
    import msgspec

    from encamp.cli.tables import show, some, table

    offers: dict[tuple[str, bytes], tuple[CommandDefinition, list[str]]] = {}
    for host in hosts:
        for definition in host.commands:
            if definition.internal:
                continue
            key = (definition.name, msgspec.msgpack.encode(definition))
            offers.setdefault(key, (definition, []))[1].append(host.name)
    made = table(
        *("command", "parameters", "returns", "offered by", "what it does"), whole=("command",)
    )
    for _, (definition, names) in sorted(offers.items()):
        made.add_row(
            definition.name,
            parameters_text(definition),
            definition.returns.value if definition.returns else "",
            "all" if len(names) == len(hosts) > 1 else some(names),
            definition.help,
        )
    show(made)


def parameters_text(definition: CommandDefinition) -> str:
    """`machine:str [timeout:float]`"""
    words = []
    for parameter in definition.parameters:
        word = f"{parameter.name}:{parameter.kind.value}"
        words.append(word if parameter.required else f"[{word}]")
    return " ".join(words)


def one(id: str) -> CommandRecord:
    """The command whose id begins so."""
    from encamp.cli.asking import asked
    from encamp.door.questions import AskCommands
    from encamp.model.command import CommandRecord

    found = asked(AskCommands(id=id), CommandRecord) if id else []
    if len(found) != 1:
        raise EncampError(
            Code.USAGE,
            f"'{id}' is not the beginning of one command's id.",
            "'encamp command ls' lists them.",
        )
    return found[0]


def took(record: CommandRecord) -> str:
    """How long it took, or has been running."""
    import time

    from encamp.model.quantity import duration

    if not record.started:
        return ""
    seconds = max(0.0, (record.ended or time.time()) - record.started)
    return f"{seconds:.1f}s" if seconds < 60 else duration(seconds)
