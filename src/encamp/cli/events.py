"""`encamp events`: what happened on the site, and what happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from encamp.model.event import Event, EventKind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

STYLES = {
    EventKind.MANAGER_STARTED: "green",
    EventKind.HOST_JOINED: "green",
    EventKind.HOST_LEFT: "yellow",
    EventKind.HOST_LOST: "red",
    EventKind.HOST_REFUSED: "red",
    EventKind.HOST_TROUBLE: "red",
    EventKind.PROPERTY_FAILED: "red",
    EventKind.PROPERTY_RECOVERED: "green",
    EventKind.TRIGGERS_LOADED: "green",
    EventKind.TRIGGERS_REFUSED: "red",
    EventKind.TRIGGER_FIRED: "yellow",
    EventKind.TRIGGER_STOPPED: "red",
    EventKind.NOTIFICATION: "yellow",
    EventKind.STORE_TROUBLE: "red",
}
"""What stands out on a terminal; the rest is told in one colour."""

LinesOfJson = Annotated[bool, typer.Option("--json", help="Print JSON, one line for each.")]


def register(app: typer.Typer) -> None:
    app.command()(events)


def events(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens from now on.")
    ] = False,
    last: Annotated[
        int, typer.Option("--last", "-n", metavar="N", min=0, help="So many of the past ones.")
    ] = 20,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="PATTERN", help="Only about these hosts.", show_default=False
        ),
    ] = None,
    as_json: LinesOfJson = False,
) -> None:
    """Tell what happened on the site.

    Hosts that came and went, machines, commands, triggers, troubles. Followed events go on when the
    manager is restarted, without a gap.

    Example: encamp events --follow --host 'node*'

    Example: encamp events --last 1000 --json | jq -r .sentence
    """
    import asyncio

    asyncio.run(_tell(follow, last, tuple(host or ()), as_json))


async def _tell(follow: bool, last: int, hosts: tuple[str, ...], as_json: bool) -> None:
    from contextlib import aclosing

    from encamp.cli.lines import Lines

    lines = Lines(as_json=as_json)
    async with aclosing(_events(follow, last, hosts)) as found:
        async for event in found:
            lines.print(event, event_parts(event))


async def _events(follow: bool, last: int, hosts: tuple[str, ...]) -> AsyncGenerator[Event, None]:
    from contextlib import aclosing

    from encamp.cli.asking import following
    from encamp.door.questions import AskEvents

    seen = 0

    def question() -> AskEvents:
        """After a restart of the manager: what came after the last one seen."""
        return AskEvents(since=seen, last=None if seen else last, follow=follow, hosts=hosts)

    async with aclosing(following(question, Event)) as answer:
        async for event in answer:
            seen = max(seen, event.number)
            yield event


def event_parts(event: Event) -> list[tuple[str, str]]:
    """A line's parts and their styles."""
    from encamp.cli.tables import moment

    return [
        (moment(event.at), "dim"),
        (f"{event.host or '-':<12}", "bold"),
        (f"{event.kind.value:<18}", STYLES.get(event.kind, "cyan")),
        (event.sentence, ""),
    ]
