"""`encamp batch try`: a private batch system, Encamp beside it, and jobs in three environments."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.batch.trial.site import Trial
    from encamp.cli.bar import Bar

ENVIRONMENTS = """\
tools:
  extends: mini
  summary: mini with a greeting
  memory: 192M
  context:
    variables: {GREETING: Hello from tools}
"""
NAMES = ("mini", "tools", "debian12")
WHERE = (
    ". /etc/os-release 2>/dev/null; "
    'echo "${PRETTY_NAME:-no os-release}, $(uname -n) $(uname -r), $(id -un), ${GREETING:-$PWD}"'
)
"""Says what a job finds around it."""

PATIENCE = 300.0
"""Seconds for a job. Those that are held are told at once."""
SHELL = """
You are {user} on {host}, one of the hosts of a private site. It stays until you leave this shell
('exit'). What is in {work} is there in machines, too.

Try:
{tries}

Read what its daemons were told:
{files}
"""


def try_it(
    system: Annotated[
        str, typer.Argument(metavar="SYSTEM", help="slurm or gridengine.", show_default=False)
    ],
    jobs: Annotated[
        int, typer.Option(min=1, max=1000, help="How many jobs, over all environments.")
    ] = 8,
    shell: Annotated[
        bool,
        typer.Option("--shell", help="Then a shell of that user's, to submit jobs of your own."),
    ] = False,
) -> None:
    """Try Encamp on a private site of real daemons.

    Nothing of this machine's is touched. Brings up a site of two nodes with an agent each, submits
    jobs of an ordinary user in three environments and in none, shows where they ran, and takes all
    of it down. Needs root and the batch system's packages; 'make demo-slurm' installs those.

    Example: encamp batch try slurm

    Example: encamp batch try gridengine --jobs 1 --shell
    """
    from encamp.cli.bar import Bar
    from encamp.describe.shipped import DEBIAN12, MINI
    from encamp.home import default_home
    from encamp.images.store import ImageStore

    kind = _kind(system)
    with Bar() as bar:
        home = default_home().prepare()
        for recipe in (MINI, DEBIAN12):
            ImageStore(home).ensure(recipe, bar)
        # The site removes it as well, even if this process is killed.
        place = tempfile.TemporaryDirectory(prefix="encamp-try-", ignore_cleanup_errors=True)
        with ending_by_signals(), place as name:
            Path(name).chmod(0o755)
            site = kind(Path(name), images=home, environments=ENVIRONMENTS, tell=bar.update)
            with site:
                _run(site, jobs, bar)
                if shell:
                    print(_greeting(site), file=sys.stderr, flush=True)
                    site.shell()


@contextmanager
def ending_by_signals() -> Iterator[None]:
    """What is open is closed first."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _kind(system: str) -> type[Trial]:
    from encamp.batch.trial.gridengine import GridEngineTrial
    from encamp.batch.trial.slurm import SlurmTrial

    kinds: dict[str, type[Trial]] = {kind.system: kind for kind in (SlurmTrial, GridEngineTrial)}
    if system not in kinds:
        raise EncampError(
            Code.USAGE,
            f"There is no private '{system[:40]}' to try.",
            f"Name one of: {', '.join(kinds)}.",
        )
    return kinds[system]


def _run(site: Trial, count: int, bar: Bar) -> None:
    wanted: list[str | None] = [*NAMES, None]
    began = time.monotonic()
    jobs = {}
    for number in range(count):
        environment = wanted[number % len(wanted)]
        jobs[site.submit(environment, ["/bin/sh", "-c", WHERE])] = environment
    site.wait(
        jobs,
        PATIENCE * (1 + count),
        on_left=lambda left: bar.update(f"{left} of {count} jobs to go", 1 - left / count),
    )
    bar.finish()
    _show(site, jobs, time.monotonic() - began)


def _greeting(site: Trial) -> str:
    width = max(len(line.command) for line in site.tries) + 2
    return SHELL.format(
        user=site.user.pw_name,
        host=site.hosts[0].name,
        work=site.work,
        tries="\n".join(f"  {line.command:{width}}{line.meaning}" for line in site.tries),
        files="\n".join(f"  {path}" for path in site.files),
    )


def _show(site: Trial, jobs: dict[str, str | None], seconds: float) -> None:
    from encamp.cli.tables import show, table

    made = table("job", "environment", "what it found around it")
    for id, environment in jobs.items():
        path = site.output(id)
        made.add_row(
            id, environment or "none", path.read_text().strip() if path.exists() else "no output"
        )
    show(made)
    asked = "encamp jobs --batch --all"
    words, variables = site.as_user(asked.split())
    told = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
    print(f"\n$ {asked}\n{told.stdout}{told.stderr}", end="")
    print(f"\n{len(jobs)} job{'s' * (len(jobs) != 1)} ended after {seconds:.1f} seconds.")
