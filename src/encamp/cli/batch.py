"""`encamp batch`: this host beside its batch system, and how that batch system is set up for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.model.batch import BatchSettings, Rule

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

    settings = _settings_of(file) if file else settings_of_site()
    if settings.system not in known():
        raise unknown(settings.system)
    for sentence in _odd(settings):
        remark(sentence)
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


def settings_of_site() -> BatchSettings:
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


def _odd(settings: BatchSettings) -> Iterator[str]:
    """What may be meant so, or not. A mistake in what describes the environments is an error."""
    from encamp.describe.environments import all_environments

    described = set(all_environments())
    ruled = {rule.environment for rule in settings.rules if rule.environment}
    offered = set(settings.environments)
    for environment in sorted((ruled | offered) - described):
        where = "a rule names it" if environment in ruled else "'environments' names it"
        yield f"No environment '{environment}' is described on this host, but {where}."
    for share in settings.shares:
        if not Path(share).is_dir():
            yield f"'shares' names {share}, and there is no such directory on this host."
    for rule in settings.rules:
        yield from _unknown_to_host(rule)
    if settings.bait_feature in described:
        yield f"'bait_feature' is {settings.bait_feature}, which is also an environment."
    for name, value in settings.programs.items():
        # The starter is where jobs are wrapped, and begun.
        if name != "starter" and value.startswith("/") and not Path(value).exists():
            yield f"'programs' says that {name} is {value}, and there is no such thing."


def _unknown_to_host(rule: Rule) -> Iterator[str]:
    import grp
    import pwd

    for kind, name, find in (
        ("user", rule.user, pwd.getpwnam),
        ("group", rule.group, grp.getgrnam),
    ):
        try:
            if name:
                find(name)
        except KeyError:
            yield f"A rule is for {kind} '{name}', which this host does not know."


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
        "environments": ", ".join(settings.environments) or "all that are described",
        "features": "-C names an environment, too" if settings.features else "name none",
        "bait feature": settings.bait_feature or "none",
        "watches": "the queue, for the site" if settings.watch else "its own jobs",
    }
    facts |= {f"program {name}": value for name, value in sorted(settings.programs.items())}
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
    """Show whether jobs may come to this host, and which are here."""
    from encamp.cli.batch_standing import jobs_here, print_standing, standing

    settings = settings_of_site()
    print_standing(standing(settings), settings, jobs_here(), as_json=as_json)


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
    open_batch_system(settings_of_site()).close_for_good(words)
    print(f"closed: {words}")


def open_again() -> None:
    """Let jobs come to this host again, whoever has closed it.

    If there is no room for another machine, the agent closes it again by itself.
    """
    from encamp.batch.adapters import open_batch_system

    open_batch_system(settings_of_site()).open_for_good()
    print("open")
