"""`encamp simulate`: what a policy would do to a site, before it does it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from encamp.cli.cleaning import remark
from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.cli.bar import Bar
    from encamp.model.command import CommandDefinition
    from encamp.sim.measures import Course
    from encamp.sim.site import Compared, SimulatedSite
    from encamp.sim.soaking import BrokenError, Driven
    from encamp.sim.workload import SimulatedJob


def register(app: typer.Typer) -> None:
    app.command("simulate")(simulate)


def simulate(
    site: Annotated[
        Path, typer.Argument(metavar="SITE", help="A file that describes the simulated site.")
    ],
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Jobs in Standard Workload Format, plain or packed by gzip, instead of made-up"
            " ones.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        list[Path] | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="A policy to try, instead of those that SITE names. Several are compared.",
            show_default=False,
        ),
    ] = None,
    triggers: Annotated[
        list[Path] | None,
        typer.Option(
            "--triggers",
            metavar="FILE",
            help="Triggers that are at work under every policy, beside those that SITE has. Can be"
            " repeated.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", metavar="N", min=0, help="What chance is drawn from: the same, the same."
        ),
    ] = 0,
    faults: Annotated[
        bool,
        typer.Option(
            "--faults", help="Let hosts, daemons, the bus and images fail, and check all promises."
        ),
    ] = False,
    runs: Annotated[
        int,
        typer.Option(
            "--runs", metavar="N", min=1, help="With --faults: so many seeds, one after the other."
        ),
    ] = 1,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw a picture of it: FILE.svg, .png or .pdf.",
            show_default=False,
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            "--log",
            metavar="FILE",
            help="Write down all that happens, line by line.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Try a policy on a simulated site.

    The decisions are those of the real manager, under a clock that does not wait.

    Hosts, environments, and what jobs want are described in SITE. How long jobs wait, how well the
    hosts are used, and what had to be made and copied for it is told for each policy, side by side.

    Example: encamp simulate site.yaml --trace jobs.swf.gz --plot waiting.svg

    Example: encamp simulate site.yaml --policy pack.yaml --policy spread.yaml

    Example: encamp simulate site.yaml --triggers /etc/encamp/triggers.yaml

    Example: encamp simulate site.yaml --faults --runs 1000
    """
    from encamp.cli.bar import Bar
    from encamp.cli.simulated import print_courses, print_driven, title
    from encamp.sim.drawing import check, draw
    from encamp.sim.site_file import read_policy, read_site
    from encamp.sim.soaking import BrokenError

    if runs > 1 and not faults:
        raise EncampError(Code.USAGE, "--runs makes no sense without --faults.")
    if plot is not None:
        check(plot.suffix)
    described = read_site(site)
    compared = [read_policy(path) for path in policy or ()] or _policies(described)
    compared = _with_triggers(compared, triggers or [])
    commands = _commands(described, compared)
    driven: dict[str, list[Driven]] = {}
    with Bar() as bar, _writing(log) as listen:
        jobs = _jobs(described, trace, bar)
        if faults:
            try:
                seeds = range(seed, seed + runs)
                driven = _soak(described, jobs, compared, seeds, listen, bar, commands)
            except BrokenError as error:
                again = replayed(site, trace, policy or [], error.seed, triggers or [])
                raise _broken(error, again) from error
            courses = [one.course for several in driven.values() for one in several if one.course]
        else:
            courses = _compare(described, jobs(seed), compared, seed, listen, bar, commands)
        if plot is not None:
            bar.update("drawing")
            _write(plot, draw(courses, title(described.path, trace), plot.suffix))
    for course in courses:
        _tell_refused(course)
    if driven:
        print_driven(driven, as_json)
    else:
        print_courses(courses, as_json)


def _policies(site: SimulatedSite) -> list[Compared]:
    from encamp.sim.site import Compared

    return list(site.policies) or [Compared(name="on demand")]


def _with_triggers(compared: list[Compared], paths: list[Path]) -> list[Compared]:
    """Policies, and beside theirs the triggers in these files."""
    if not paths:
        return compared
    import msgspec

    from encamp.cli.trial import trigger_files
    from encamp.describe.nodes import Mistakes
    from encamp.describe.trigger_files import definitions_of
    from encamp.sim.triggers import with_others

    mistakes = Mistakes()
    found = definitions_of(trigger_files(paths), mistakes)
    mistakes.raise_any()
    return [
        msgspec.structs.replace(one, triggers=with_others(one.triggers, found)) for one in compared
    ]


def _commands(
    site: SimulatedSite, compared: Sequence[Compared]
) -> dict[str, CommandDefinition] | None:
    """What hosts offer to do, if there are triggers that may tell them to."""
    if not site.triggers and not any(one.triggers for one in compared):
        return None
    from encamp.agent.commands.starting import read_offers

    return {definition.name: definition for definition in read_offers().definitions}


def _jobs(site: SimulatedSite, trace: Path | None, bar: Bar) -> Callable[[int], list[SimulatedJob]]:
    """What gives the jobs for a seed."""
    from encamp.sim.trace import read_trace
    from encamp.sim.workload import jobs_of_trace, made_up

    if trace is None:
        if site.jobs is None:
            raise EncampError(
                Code.USAGE,
                f"Nothing says which jobs there are on the site of {site.path}.",
                "Name a trace with --trace, or describe made-up ones under 'jobs'.",
            )
        return lambda seed: made_up(site, seed)
    bar.update(f"reading {trace}")
    read = read_trace(trace)
    jobs = jobs_of_trace(site, read)
    if read.left_out:
        several = "1 job" if read.left_out == 1 else f"{read.left_out:,} jobs"
        are = "is" if read.left_out == 1 else "are"
        remark(f"{several} of {trace} {are} left out: when, or for how long, is not known.")
    if read.unsorted:
        remark(f"{trace}:{read.unsorted}: earlier than the job before it; all jobs were sorted.")
    return lambda seed: jobs


def _tell_refused(course: Course) -> None:
    if not course.refused:
        return
    job, why = next(iter(course.refused.items()))
    count = len(course.refused)
    several = "1 job was" if count == 1 else f"{count:,} jobs were"
    remark(f"'{course.measured.policy}': {several} refused; the first, {job}: {why}")


@contextmanager
def _writing(path: Path | None) -> Iterator[Callable[[str], None] | None]:
    """What takes the lines of a log."""
    if path is None:
        yield None
        return
    try:
        with path.open("w") as file:
            yield lambda line: print(line, file=file)
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> EncampError:
    return EncampError(Code.INPUT_MISSING, f"{path} cannot be written to: {error.strerror}.")


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise _not_written(path, error) from error


def _compare(
    site: SimulatedSite,
    jobs: list[SimulatedJob],
    compared: Sequence[Compared],
    seed: int,
    listen: Callable[[str], None] | None,
    bar: Bar,
    commands: dict[str, CommandDefinition] | None,
) -> list[Course]:
    from encamp.sim.simulation import Simulation

    simulations = [
        Simulation(site, jobs, one, seed=seed, listen=listen, commands=commands) for one in compared
    ]
    return [simulation.run(bar) for simulation in simulations]


def _soak(
    site: SimulatedSite,
    jobs: Callable[[int], list[SimulatedJob]],
    compared: Sequence[Compared],
    seeds: range,
    listen: Callable[[str], None] | None,
    bar: Bar,
    commands: dict[str, CommandDefinition] | None,
) -> dict[str, list[Driven]]:
    """Each policy with each seed."""
    from encamp.sim.soaking import drive

    found: dict[str, list[Driven]] = {one.name: [] for one in compared}
    for number, seed in enumerate(seeds):
        bar.update(f"breaking things · seed {seed}", number / len(seeds))
        for one in compared:
            last = seed == seeds[-1]
            made = drive(site, jobs(seed), one, seed, listen, measured=last, commands=commands)
            found[one.name].append(made)
    return found


def replayed(
    site: Path,
    trace: Path | None,
    policies: Sequence[Path],
    seed: int,
    triggers: Sequence[Path] = (),
) -> str:
    """The command line that does the same again."""
    words: list[str | Path] = ["encamp", "simulate", site]
    words += ["--trace", trace] if trace is not None else []
    for policy in policies:
        words += ["--policy", policy]
    for file in triggers:
        words += ["--triggers", file]
    words += ["--faults", "--seed", str(seed)]
    return shlex.join(str(word) for word in words)


def _broken(error: BrokenError, again: str) -> EncampError:
    return EncampError(
        Code.INTERNAL,
        f"A promise was broken with seed {error.seed} and policy '{error.policy}': {error.what}.",
        f"This repeats it exactly: {again}",
        detail="\n".join(error.log),
    )
