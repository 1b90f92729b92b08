"""Jobs of the site: what waits, runs and has ended, what they printed, and why."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Id = Annotated[
    str,
    typer.Argument(metavar="ID", help="Its id, the beginning of it, or its label."),
]
Ids = Annotated[
    list[str],
    typer.Argument(metavar="ID...", help="Ids, the beginnings of them, or labels."),
]


def register(app: typer.Typer) -> None:
    for command in (jobs, logs, wait, fetch, cancel, why):
        app.command()(command)


def jobs(
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also those that are over.")
    ] = False,
    last: Annotated[
        int, typer.Option("--last", "-n", metavar="N", min=1, help="At most so many.")
    ] = 100,
    batch: Annotated[
        bool, typer.Option("--batch", help="Those that came to hosts from a batch system.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List your jobs on the site, and machines that were started.

    The latest first: what waits, what runs and where, and for what reason. Administrators see those
    of everybody. With --batch, jobs of a batch system that run in machines; where there is no
    manager, those of this host.

    Example: encamp jobs --all --last 20

    Example: encamp jobs --batch
    """
    if batch:
        from encamp.cli.batch_jobs import list_batch_jobs

        list_batch_jobs(everything, last, as_json=as_json)
        return
    from encamp.cli.job_views import list_jobs

    list_jobs(everything, last, as_json=as_json)


def logs(
    id: Id,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Until it is over, as it comes.")
    ] = False,
    number: Annotated[
        int | None,
        typer.Option("--machine", metavar="N", help="Only of this one of several machines."),
    ] = None,
) -> int:
    """Print what a detached job has printed.

    On standard output and standard error, as it did. Its host keeps it for a week.

    Example: encamp logs -f 3f2a
    """
    from encamp.cli.job_output import show_logs

    return show_logs(id, follow=follow, number=number)


def wait(
    ids: Ids,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what is known of each at its end.")
    ] = False,
) -> int:
    """Wait until jobs are over, and end with their exit code.

    Of several jobs, that is the highest. One that failed, was cancelled or was lost has none: then
    it is said why, and this ends with 84, 79 or 81; with 85 if it has waited for longer than
    --wait-at-most.

    Example: encamp wait "$(encamp run --detach -- ./analyse)"
    """
    from encamp.cli.job_output import wait_for

    return wait_for(ids, as_json=as_json)


def fetch(
    id: Id,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="DIR",
            help="Where to put them, instead of where --out said.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Fetch the files that --out of a detached job named.

    Waits until the job is over. They go where they would have gone if it had not been detached, or
    into the directory --to; those of several machines into a directory for each. Its host keeps
    them for a week.

    Example: encamp fetch 3f2a --to results
    """
    from encamp.cli.job_output import fetch_files

    return fetch_files(id, to)


def cancel(
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID...", help="Ids, the beginnings of them, or labels."),
    ] = None,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="All of your own that wait for a place.")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="All of your own, however far they are.")
    ] = False,
) -> None:
    """End jobs and started machines, however far they are.

    One that waits is taken out of the queue; one that runs is ended, and its machine with it. A
    machine that was started can be called by its name, too. The id of each is printed as soon as
    it has ended.

    Example: encamp cancel 3f2a
    """
    from encamp.cli.cancelling import cancel_all, own

    if not ids and not waiting and not everything:
        raise typer.BadParameter("Which? Name them, or say --waiting or --all.", param_hint="ID...")
    mine = own(waiting_only=not everything) if waiting or everything else []
    cancel_all([*(ids or []), *mine])


def why(
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="Of a job, machine or command; or the name of a host or trigger. A batch system's"
            " job is called as there, or slurm:17.",
        ),
    ],
    hosts: Annotated[
        int, typer.Option("--hosts", metavar="N", min=0, help="Look at so many hosts at most.")
    ] = 100,
    as_json: AsJson = False,
) -> None:
    """Tell why something is as it is, and what happens next.

    Of a job that waits: what for, its place in the queue, which limit caps it, and why each host
    was not chosen. Also of machines, hosts and triggers; and of a batch system's job that came to
    hosts: where, whether it was given back, and for what reason.

    Example: encamp why 3f2a

    Example: encamp why slurm:17
    """
    from encamp.cli.why import explain

    explain(id, hosts, as_json=as_json)
