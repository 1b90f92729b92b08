"""`encamp batch`: this host beside its batch system, and how that batch system is set up for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.model.batch import BatchSettings

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer) -> None:
    from encamp.cli import batch_nodes, batch_power
    from encamp.cli.batch_install import install, uninstall
    from encamp.cli.batch_try import try_it

    group = typer.Typer(help="Run a batch system's jobs in machines of their environments.")
    for command in (install, uninstall, check, status, close):
        group.command()(command)
    group.command("open")(open_again)
    group.command("try")(try_it)
    batch_nodes.register(group)
    batch_power.register(group)
    app.add_typer(group, name="batch")


def check(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="The host's own, if none is named."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read batch.yaml, and tell every mistake in it with its place.

    Prints what is in effect, defaults included.
    """
    from encamp.batch.adapters import known, unknown
    from encamp.cli.cleaning import remark

    settings = _settings_of(file) if file else _settings()
    if settings.system not in known():
        raise unknown(settings.system)
    for environment in _unknown_environments(settings):
        remark(f"No environment '{environment}' is described on this host, but a rule names it.")
    _print_settings(settings, as_json=as_json)


def _settings_of(file: Path) -> BatchSettings:
    from encamp.describe import places
    from encamp.describe.batch_file import read_batch_settings
    from encamp.describe.sources import Level

    found = places.look([places.Place(str(file), Level.HERE)])
    files = places.read(found, anybody=True)
    if not files:
        raise EncampError(
            Code.INPUT_MISSING, found[0].refused or f"There is no file {file}.", "Name another."
        )
    return read_batch_settings(*files[0])


def _settings() -> BatchSettings:
    from encamp.describe.batch_file import BATCH, load_batch_settings
    from encamp.describe.places import site_directory

    settings = load_batch_settings(of_host=True)
    if settings is None:
        raise EncampError(
            Code.CONFIGURATION,
            f"This host has no batch system: there is no {site_directory()}/{BATCH}.",
            "'encamp batch install SYSTEM' makes one; or write 'system: slurm' into it.",
        )
    return settings


def _unknown_environments(settings: BatchSettings) -> list[str]:
    from encamp.describe.environments import all_environments

    named = {rule.environment for rule in settings.rules if rule.environment}
    return sorted(named - set(all_environments())) if named else []


def _print_settings(settings: BatchSettings, *, as_json: bool) -> None:
    if as_json:
        import msgspec

        from encamp.cli.machines import print_json

        print_json(msgspec.structs.asdict(settings))
        return
    from encamp.cli.tables import show, table

    made = table("", "")
    made.show_header = False
    for key, value in _facts(settings).items():
        made.add_row(key, value)
    show(made)


def _facts(settings: BatchSettings) -> dict[str, str]:
    from encamp.model.quantity import duration
    from encamp.model.size import format_bytes

    def free(memory: int, disk: int) -> str:
        return f"{format_bytes(memory)} of memory or {format_bytes(disk)} of disk"

    facts = {
        "system": settings.system,
        "shares": ", ".join(settings.shares) or "none",
        "closes below": free(settings.close.memory, settings.close.disk),
        "opens from": free(settings.open.memory, settings.open.disk).replace(" or ", " and "),
        "machines": str(settings.machines) if settings.machines else "as many as there is room for",
        "looks every": duration(settings.every),
        "tries": str(settings.tries),
        "restarts": str(settings.restarts),
        "failures": f"{settings.failures}, then a pause of {duration(settings.pause)}",
        "size": str(settings.size) if settings.size else "what the job was granted",
    }
    for number, rule in enumerate(settings.rules, 1):
        words = [
            f"{name} {value}"
            for name, value in (
                ("queue", rule.queue),
                ("account", rule.account),
                ("user", rule.user),
                ("group", rule.group),
            )
            if value
        ]
        facts[f"rule {number}"] = (
            f"{' and '.join(words) or 'every job'}: {rule.environment or 'no machine'}"
        )
    return facts


def status(as_json: AsJson = False) -> None:
    """Show how this host stands towards its batch system: may jobs come, and which are here?"""
    from encamp.agent.bait.records import found
    from encamp.cli.batch_standing import print_standing, standing
    from encamp.home import default_home

    settings = _settings()
    print_standing(
        standing(settings),
        settings,
        found(default_home(), under_way=True),
        as_json=as_json,
    )


def close(
    reason: Annotated[
        list[str] | None,
        typer.Argument(metavar="[REASON]...", help="Why, for whoever asks the batch system."),
    ] = None,
) -> None:
    """Have no more jobs sent to this host, until 'encamp batch open'. Those that run go on.

    It is an administrator's closing: the agent never undoes it.
    """
    from encamp.batch.adapters import open_batch_system

    words = " ".join(reason or ()) or "closed by an administrator"
    open_batch_system(_settings()).close_for_good(words)
    print(f"closed: {words}")


def open_again() -> None:
    """Let jobs come to this host again, whoever has closed it.

    If there is no room for another machine, the agent closes it again by itself.
    """
    from encamp.batch.adapters import open_batch_system

    open_batch_system(_settings()).open_for_good()
    print("open")
