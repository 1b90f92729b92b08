"""How much longer a job takes through a site than on its host alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from bench.ground import Ground
from bench.measure import Series, paired_ratio, ratio, rounds
from bench.processes import running, wait_until
from bench.report import Figure, Goal, Report
from bench.site import enrol, name_of, site

TITLE = "a job through a site"

EXPLANATION = """
`encamp run -- echo x`, from the start of the command line until the first byte of its output, and
until it has ended. *Alone* is the same with `--local`: no manager, no bus. Through the site, the
request is checked and written to the manager's store, a host is chosen and asked over NATS whether
it will, promises to and writes that down, is told to begin and writes that down as well, and the
output comes straight from the host's agent. Manager, NATS server and agent are processes of their
own on the same machine; both sides clone their machines from the same template, in turns.
"""

ENCAMP = Path(sys.executable).with_name("encamp")


def measure(ground: Ground, *, quick: bool) -> Report:
    first = [Series("first output, alone", "ms"), Series("first output, through the site", "ms")]
    last = [Series("end, alone", "ms"), Series("end, through the site", "ms")]
    home = ground.keeper.home.root
    enrolled = enrol(ground.scratch / "config", 1)
    settings = {"host": name_of(0)}
    with site(ground.scratch / "site", enrolled, settings) as running_site:
        environment = {**running_site.environment, "ENCAMP_HOME": str(home), "ENCAMP_QUIET": "1"}
        agent = [str(ENCAMP), "agent"]
        with running(agent, ground.scratch / "agent.log", environment, grace=5):
            running_site.wait_for(1)
            door = {**environment, "ENCAMP_DOOR": str(running_site.directory / "door")}
            wait_until("no job ran through the site", lambda: _works(door), 60)
            for _ in rounds("site_run", 3 if quick else 40):
                for number, words in enumerate((["--local"], list[str]())):
                    begun, ended = _run(words, door)
                    first[number].add(begun)
                    last[number].add(ended)
    return Report(
        figures=[
            Figure(
                "first output through the site / alone",
                ratio(first[1], first[0]),
                goal=(Goal.AT_MOST, 1.3),
            ),
            Figure("end through the site / alone", ratio(last[1], last[0])),
            Figure("the same, round by round", paired_ratio(first[1], first[0])),
        ],
        background=[*first, *last],
    )


def _works(environment: Mapping[str, str]) -> bool:
    words = ["run", "--", "true"]
    done = subprocess.run([ENCAMP, *words], env={**os.environ, **environment}, check=False)
    return done.returncode == 0


def _run(words: list[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Milliseconds until the first byte, and until the end."""
    began = time.perf_counter()
    with subprocess.Popen(
        [ENCAMP, "run", *words, "--", "echo", "x"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        first = time.perf_counter() - began
        process.wait()
        last = time.perf_counter() - began
    return first * 1000, last * 1000
