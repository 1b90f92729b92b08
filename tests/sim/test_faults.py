"""Whatever goes wrong, whenever it does: no job is lost, none is run twice, no machine is nobody's,
no host is overfull, every wait has a reason, and all of it comes to an end.

ENCAMP_FAULT_RUNS says how many schedules of faults are tried on each site, ENCAMP_FAULT_SEED which
seed is the first. `encamp simulate FILE --faults --runs N --seed N` does the same.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import msgspec
import pytest

from encamp.cli.main import run_command
from encamp.cli.simulate import replayed
from encamp.model.errors import Code
from encamp.sim.faults import FaultKind, plan
from encamp.sim.host import SimulatedHost
from encamp.sim.site import SimulatedSite
from encamp.sim.site_file import read_site
from encamp.sim.soaking import BrokenError, drive
from encamp.sim.workload import made_up
from tests.sim.sites import EXAMPLES

RUNS = int(os.environ.get("ENCAMP_FAULT_RUNS", "500"))
FIRST = int(os.environ.get("ENCAMP_FAULT_SEED", "0"))

SITES = sorted((Path(__file__).parent / "broken").glob("*.yaml"))
FAULTS = EXAMPLES / "faults.yaml"


FEWER = {"limited": 2, "reused": 3, "ready": 8, "tight": 2}
"""How many times fewer there are of sites on which much happens."""

BROKE = [("faults", 30919), ("reused", 2426), ("reused", 10339)]
"""Sites, and seeds that have broken a promise there."""


@pytest.mark.parametrize("path", [FAULTS, *SITES], ids=lambda path: path.stem)
def test_promises_are_kept_whatever_fails(path: Path) -> None:
    site = read_site(path)
    runs = RUNS // FEWER.get(path.stem, 1)
    for seed in range(FIRST, FIRST + max(runs, 1)):
        keep_promises(path, site, seed)


@pytest.mark.parametrize(("name", "seed"), BROKE)
def test_promises_that_were_broken_once_are_kept(name: str, seed: int) -> None:
    [path] = [path for path in (FAULTS, *SITES) if path.stem == name]
    keep_promises(path, read_site(path), seed)


def keep_promises(path: Path, site: SimulatedSite, seed: int) -> None:
    for compared in site.policies:
        try:
            drive(site, made_up(site, seed), compared, seed)
        except BrokenError as error:
            log = "\n".join(error.log[-100:])
            again = replayed(path, None, [], seed)
            pytest.fail(f"{log}\n{error.what}\nTo repeat it: {again}", pytrace=False)


def test_schedules_differ_and_all_kinds_of_faults_come_about() -> None:
    plans = [plan(["a", "b", "c"], 100.0, seed) for seed in range(200)]
    assert {fault.kind for faults in plans for fault in faults} == set(FaultKind)
    assert len({msgspec.json.encode(faults) for faults in plans}) == 200
    assert plans[7] == plan(["a", "b", "c"], 100.0, 7)


def test_one_host_at_most_is_gone_for_good() -> None:
    for seed in range(300):
        faults = plan(["a", "b", "c"], 100.0, seed)
        gone = [fault.host for fault in faults if fault.kind is FaultKind.HOST_GONE]
        assert gone in ([], ["a"])


def test_simulation_with_faults_is_the_same_again() -> None:
    site = read_site(FAULTS)
    [compared] = site.policies

    def everything() -> list[str]:
        lines: list[str] = []
        for seed in range(5):
            drive(site, made_up(site, seed), compared, seed, lines.append)
        return lines

    assert everything() == everything()


# ── a promise that is broken ─────────────────────────────────────────────────────────────────────


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts promise more memory than they have."""
    monkeypatch.setattr(SimulatedHost, "lacks", lambda self, size: "")


def said(capfd: pytest.CaptureFixture[str], words: list[str]) -> str:
    assert run_command(words) == Code.INTERNAL.value
    return capfd.readouterr().err


@pytest.mark.usefixtures("broken")
def test_broken_promise_is_told_with_the_command_that_repeats_it_exactly(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCAMP_QUIET", "1")
    site = tmp_path / "a site.yaml"
    site.write_text(FAULTS.read_text())
    first = said(capfd, ["simulate", str(site), "--faults", "--runs", "50"])
    assert "A promise was broken with seed" in first
    assert "has promised more than it has" in first
    again = first.rpartition("This repeats it exactly: ")[2].strip()
    program, *words = shlex.split(again)
    assert program == "encamp"
    assert "--runs" not in words
    second = said(capfd, words)
    assert second == first
    assert second.count("\n") > 20  # What led to it is told, too.


@pytest.mark.usefixtures("broken")
def test_broken_promise_fails_the_test_that_looks_for_it() -> None:
    with pytest.raises(pytest.fail.Exception) as raised:
        test_promises_are_kept_whatever_fails(FAULTS)
    assert f"encamp simulate {FAULTS} --faults --seed " in str(raised.value)
