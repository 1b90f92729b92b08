"""`encamp batch install` and `uninstall`: a batch system set up for Encamp, or as it was before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.batch.install.changes import Change, Installed, Plan

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Only show what would be changed.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
System = Annotated[
    str,
    typer.Argument(metavar="SYSTEM", help="slurm, gridengine or pbs.", show_default=False),
]


def install(
    system: System,
    conf: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="slurm.conf, if it is neither where SLURM_CONF says nor in /etc/slurm.",
            show_default=False,
        ),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            metavar="QUEUE",
            help="Grid Engine: a queue whose jobs may ask for environments; again for another."
            " All, if none is named.",
            show_default=False,
        ),
    ] = None,
    spank: Annotated[
        bool,
        typer.Option("--spank", help="Slurm: add the option --vmenv=NAME to sbatch and srun."),
    ] = False,
    node: Annotated[
        bool,
        typer.Option("--node", help="Only what a host needs that runs jobs, not the controller's."),
    ] = False,
    prefix: Annotated[
        str, typer.Option(metavar="DIR", help="Where the starter goes, the same on every host.")
    ] = "/usr/lib/encamp",
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="Grid Engine: --prefix is the same directory on the master, which is not this"
            " host.",
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Set a batch system up for Encamp.

    Every change is shown before it is made. Only the batch system's own, documented hooks are
    used, and all of it can be undone with 'encamp batch uninstall'. What is there already is left
    as it is, so that it can be run again, for example after rules in batch.yaml have changed. A
    site's own job_submit.lua goes on being called.

    Example: encamp batch install slurm --dry-run

    Example: encamp batch install gridengine --queue long.q --yes
    """
    from encamp.batch.install import planning, recording

    asked = planning.Asked(
        system=system,
        conf=str(conf.absolute()) if conf else "",
        prefix=str(Path(prefix).absolute()),
        queues=tuple(queue or ()),
        spank=spank,
        node=node,
        shared=shared,
    )
    plan = planning.plan(asked)
    _show_plan(plan, as_json=as_json)
    if dry_run or not plan.changes:
        return
    if not yes:
        _ask("Change this?")
    recording.install(plan, _tell("changing", quiet=as_json))
    if not as_json:
        _say_what_is_left(plan)


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    from encamp.batch.install.applying import look
    from encamp.batch.install.showing import difference, headline
    from encamp.cli.cleaning import clean

    if as_json:
        from encamp.cli.machines import print_json

        changes = [
            {"what": headline(change), "difference": difference(change, look)}
            for change in plan.changes
        ]
        print_json({"changes": changes, "left": plan.left, "warnings": plan.warnings})
        return
    for warning in plan.warnings:
        print(f"encamp: {clean(warning)}", file=sys.stderr)
    if not plan.changes:
        print(f"Nothing to change: {plan.system} is set up for Encamp.")
        return
    for change in plan.changes:
        for line in difference(change, look):
            print(clean(line))


def _say_what_is_left(plan: Plan) -> None:
    """To standard error: the output is what was changed."""
    from encamp.cli.cleaning import clean

    if plan.left:
        print("\nLeft to you:", file=sys.stderr)
        for number, sentence in enumerate(plan.left, 1):
            print(f"  {number}. {clean(sentence)}", file=sys.stderr)


def _tell(verb: str, *, quiet: bool = False) -> Callable[[Change], None]:
    from encamp.batch.install.showing import headline
    from encamp.cli.cleaning import clean

    def tell(change: Change) -> None:
        if not quiet:
            print(f"{verb}: {clean(headline(change))}", file=sys.stderr)

    return tell


def _ask(question: str) -> None:
    if not sys.stdin.isatty():
        raise EncampError(
            Code.USAGE, "Nobody is there to be asked, and nothing was changed.", "Say --yes."
        )
    if not typer.confirm(question, err=True):
        raise typer.Abort


BEFORE_UNDOING = (
    "Jobs that wait and name an environment need what is taken away. 'squeue' and 'qstat' list"
    " those that wait."
)


def uninstall(
    system: Annotated[
        str,
        typer.Argument(
            metavar="[SYSTEM]", help="slurm, gridengine or pbs; what is set up, if one is."
        ),
    ] = "",
    prefix: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="Where the starter was put, if this is to be done only when it is there."
            " It need not be named.",
            show_default=False,
        ),
    ] = "",
    forget: Annotated[
        bool,
        typer.Option(
            "--forget", help="Forget about what somebody else has changed since; it is left as is."
        ),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Undo what 'encamp batch install' has changed, exactly.

    What somebody else has changed since is never overwritten: it is left as it is, told, and still
    known to the next call. An installation that was cut short is undone the same way.
    """
    from encamp.batch.install import applying, recording
    from encamp.batch.install.changes import File, State
    from encamp.batch.install.showing import headline

    found = _installed(system)
    if prefix:
        _check_prefix(found, str(Path(prefix).absolute()))
    if dry_run or not yes:
        states = applying.states(found.changes)
        for change in reversed(found.changes):
            if states[change.key] is State.AFTER:
                print(f"undo: {headline(change)}")
        print(BEFORE_UNDOING, file=sys.stderr)
    if dry_run:
        return
    if not yes:
        _ask("Undo this?")
    kept = recording.uninstall(found, _tell("undoing"), forget=forget)
    if kept and not forget:
        raise EncampError(
            Code.WRONG_STATE,
            "Not all was undone: what is told above was left as it is.",
            "Look at it yourself. 'encamp batch uninstall --forget' then forgets about it.",
            detail="\n".join(f"{headline(each.change)}: {each.reason}" for each in kept),
        )
    for change in found.changes:
        if isinstance(change, File) and change.begun and Path(change.path).exists():
            print(f"{change.path} stays: it was changed since.", file=sys.stderr)
    print(_after_undoing(found.system), file=sys.stderr)


def _check_prefix(found: Installed, prefix: str) -> None:
    """Nobody undoes another installation than the one that was meant."""
    from encamp.batch.install.wanted import starters_of

    places = [str(Path(path).parent) for path in starters_of(found)]
    if prefix not in places:
        raise EncampError(
            Code.USAGE,
            f"Nothing was put into {prefix} for {found.system}, and nothing was undone.",
            f"The starter is in {' and '.join(places)}." if places else "Leave out --prefix.",
        )


def _after_undoing(system: str) -> str:
    if system == "gridengine":
        return "All is as it was. Jobs that were submitted in between keep their variables."
    return (
        "All is as it was, for jobs that are submitted after 'scontrol reconfigure'. Those that"
        " wait and name an environment still need the starter, which is gone from this host."
    )


def _installed(system: str) -> Installed:
    from encamp.batch.install import recording

    all_there = recording.all_installed()
    found = [each for each in all_there if system in ("", each.system)]
    if len(found) == 1:
        return found[0]
    if found:
        raise EncampError(
            Code.USAGE,
            "More than one batch system is set up here.",
            f"Name one: {', '.join(each.system for each in found)}.",
        )
    raise EncampError(
        Code.WRONG_STATE,
        f"Nothing was changed for {system or 'any batch system'} on this host.",
        f"{recording.directory()} is where changes are written down.",
    )
