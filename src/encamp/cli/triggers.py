"""`encamp trigger`: what the manager watches for, and why it did or did not act."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from encamp.core.actions import Judged
    from encamp.model.property import Value
    from encamp.model.trigger import TriggerView

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LinesOfJson = Annotated[bool, typer.Option("--json", help="Print JSON, one line for each.")]
One = Annotated[str, typer.Argument(metavar="NAME", help="The trigger's name.", show_default=False)]
Maybe = Annotated[
    str, typer.Argument(metavar="[NAME]", help="Only the one of this name.", show_default=False)
]

TIMES = frozenset({"hold", "every", "cooldown", "ticks"})
"""Options of a trigger that are seconds."""


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Triggers: what is done when something becomes true.")
    group.command("ls")(trigger_ls)
    group.command("show")(trigger_show)
    group.command("test")(trigger_test)
    group.command("log")(trigger_log)
    group.command("reload")(trigger_reload)
    app.add_typer(group, name="trigger")


def trigger_ls(as_json: AsJson = False) -> None:
    """List the triggers, how often they fired, what they are true for."""
    from encamp.cli.asking import asked, asked_one
    from encamp.cli.cleaning import remark
    from encamp.cli.machines import print_json
    from encamp.door.questions import AskStatus, AskTriggers, Status
    from encamp.model.trigger import TriggerView

    found = asked(AskTriggers(), TriggerView)
    if as_json:
        print_json(found)
        return
    _print_views(found)
    if refused := asked_one(AskStatus(), Status).triggers_refused:
        remark(refused)


def _print_views(found: list[TriggerView]) -> None:
    from encamp.cli.listing import show_list
    from encamp.cli.tables import ago, some

    columns = ("trigger", "when", "does", "fired", "last", "true now for", "")
    rows = [
        (
            view.name,
            view.expression,
            "; ".join(view.commands),
            str(view.fired),
            ago(view.last_fired) if view.last_fired else "",
            some(view.true_for),
            f"stopped: {view.stopped}" if view.stopped else "",
        )
        for view in found
    ]
    show_list(columns, rows, below=("", "does", "when", "true now for"))


def trigger_show(name: One, as_json: AsJson = False) -> None:
    """Show a trigger: what it says, where it is written, how it is."""
    from encamp.cli.asking import asked
    from encamp.cli.machines import print_json
    from encamp.cli.tables import ago, moment, show, table
    from encamp.door.questions import AskTriggers
    from encamp.model.trigger import TriggerView

    found = asked(AskTriggers(name=name), TriggerView)
    if len(found) != 1:
        raise _unknown(name)
    view = found[0]
    if as_json:
        print_json(view)
        return
    facts = {
        "trigger": view.name,
        "written in": view.place,
        "when": view.expression,
        **{f"then {place}": text for place, text in enumerate(view.commands, 1)},
        "judged for": f"each {view.about}" if view.about else "the whole site",
        **{key: _option_text(key, value) for key, value in view.options.items()},
        "fired": "once" if view.fired == 1 else f"{view.fired} times",
        "last": f"{moment(view.last_fired)} ({ago(view.last_fired)} ago)"
        if view.last_fired
        else "never",
        "true now for": ", ".join(view.true_for) or "nothing",
        "stopped": view.stopped,
    }
    made = table("", "")
    made.show_header = False
    for key, value in facts.items():
        if value:
            made.add_row(key, value)
    show(made)


def _option_text(name: str, value: Value) -> str:
    """Times with their units; what is 0 is not in use."""
    from encamp.cli.values import value_text

    return value_text(value, "seconds" if name in TIMES and value else "")


def _unknown(name: str) -> EncampError:
    return EncampError(
        Code.USAGE, f"There is no trigger '{name}'.", "'encamp trigger ls' lists them."
    )


def trigger_test(
    name: Maybe = "",
    site: Annotated[
        Path | None,
        typer.Option(
            "--site",
            metavar="FILE",
            help="A recorded site ('encamp site record'), instead of the live one.",
            show_default=False,
        ),
    ] = None,
    triggers: Annotated[
        list[Path] | None,
        typer.Option(
            "--triggers",
            metavar="FILE",
            help="Triggers that are written there (.yaml or .ini), instead of the site's own.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Try triggers out: what each would do now, and why. Nothing is done.

    Mistakes in the files are told with their places. Without --site the manager is asked how things
    are; with it, no manager is needed.

    Example: encamp trigger test --triggers draft.yaml

    Example: encamp trigger test too_hot --site monday.json
    """
    from encamp.cli.machines import print_json
    from encamp.cli.trial import try_out

    if "/" in name or name.endswith((".yaml", ".ini")):
        raise EncampError(
            Code.USAGE,
            f"'{name}' is a file, and the argument of 'encamp trigger test' is a trigger's name.",
            f"To try the triggers of a file: encamp trigger test --triggers {shlex.quote(name)}",
        )
    found = try_out(name, site, triggers or [])
    if as_json:
        print_json(found)
    else:
        _print_tried(found)


def _print_tried(found: list[Judged]) -> None:
    from encamp.cli.tables import show, table

    made = table("trigger", "for", "judgement", "because", "it would")
    for judged in found:
        made.add_row(
            judged.trigger,
            judged.subject,
            JUDGEMENTS.get(judged.judgement.value, judged.judgement.value),
            because(judged),
            "; ".join(judged.actions),
        )
    show(made)


JUDGEMENTS = {"fired": "would fire"}
"""What is said differently of a trigger that is only tried."""


def because(judged: Judged) -> str:
    """The reason, and the values that were seen."""
    from encamp.cli.values import shortened, value_text

    seen = ", ".join(f"{name} = {value_text(value)}" for name, value in judged.seen.items())
    return shortened("; ".join(part for part in (judged.reason, seen) if part))


def trigger_log(
    name: Maybe = "",
    last: Annotated[
        int, typer.Option("--last", "-n", metavar="N", min=0, help="So many of the past entries.")
    ] = 50,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens from now on.")
    ] = False,
    as_json: LinesOfJson = False,
) -> None:
    """Tell why triggers fired or did not, with the values they saw.

    Example: encamp trigger log too_hot --follow
    """
    import asyncio

    asyncio.run(_tell(name, last, follow, as_json))


async def _tell(name: str, last: int, follow: bool, as_json: bool) -> None:
    from contextlib import aclosing

    from encamp.cli.lines import Lines

    lines = Lines(as_json=as_json)
    async with aclosing(_entries(name, last, follow)) as entries:
        async for judged in entries:
            lines.print(judged, judged_parts(judged))


async def _entries(name: str, last: int, follow: bool) -> AsyncGenerator[Judged, None]:
    """After a restart of the manager, what is told again is left out."""
    from contextlib import aclosing

    from encamp.cli.asking import following
    from encamp.core.actions import Judged
    from encamp.door.questions import AskTriggerLog

    latest = 0.0

    def question() -> AskTriggerLog:
        return AskTriggerLog(name=name, last=last, follow=follow)

    async with aclosing(following(question, Judged)) as answer:
        async for judged in answer:
            if judged.at >= latest:
                latest = judged.at
                yield judged


STYLES = {"fired": "green", "stopped": "red", "failed": "red", "unknown": "yellow"}


def judged_parts(judged: Judged) -> list[tuple[str, str]]:
    """A line's parts and their styles."""
    from encamp.cli.tables import moment

    subject = f" ({judged.subject})" if judged.subject else ""
    parts = [
        (moment(judged.at), "dim"),
        (judged.trigger + subject, "bold"),
        (judged.judgement.value, STYLES.get(judged.judgement.value, "cyan")),
        (because(judged), ""),
    ]
    if judged.actions:
        parts.append(("→ " + "; ".join(judged.actions), "green"))
    return parts


def trigger_reload(as_json: AsJson = False) -> None:
    """Have the manager read the files with triggers again.

    If they have mistakes, these are told with their places, and the triggers that are watched stay
    as they are. Triggers that were stopped are let go again.
    """
    from encamp.cli.asking import asked
    from encamp.cli.machines import print_json
    from encamp.door.questions import ReloadTriggers
    from encamp.model.trigger import TriggerView

    found = asked(ReloadTriggers(), TriggerView)
    if as_json:
        print_json(found)
    else:
        _print_views(found)
