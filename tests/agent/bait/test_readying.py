"""Machines that are made ready for jobs of the batch system are what such jobs would get."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from encamp.agent.bait import readying
from encamp.agent.bait.choosing import choose_shares
from encamp.agent.caller import caller
from encamp.describe.shipped import MINI
from encamp.model.environment import Environment
from encamp.model.job import MachineRequest
from encamp.model.size import MIB, Size
from tests.site.siting import root_only

ENVIRONMENT = Environment(name="again", image=MINI, size=Size(1, 128 * MIB), reuse=True)


@root_only
def test_they_have_the_directories_of_a_job_that_begins_below_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, home = tmp_path / "shared", tmp_path / "home"
    (shared / "work").mkdir(parents=True)
    home.mkdir()
    (tmp_path / "batch.yaml").write_text(f"system: slurm\nshares: [{shared}]\n")
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path))
    user = msgspec.structs.replace(caller(), home=str(home))
    monkeypatch.setattr(readying, "caller", lambda: user)
    asked = MachineRequest("again", user, batch=True)
    made = readying.for_batch_jobs(asked, ENVIRONMENT, readying.everybodys_shares())
    assert [share.source for share in made.shares] == [str(shared), str(home)]
    of_job = choose_shares([str(shared)], str(home), str(shared / "work"))
    assert made.shares == of_job


def test_on_a_host_without_a_batch_system_they_have_their_owners_home() -> None:
    asked = MachineRequest("again", caller(), batch=True)
    made = readying.for_batch_jobs(asked, ENVIRONMENT, ())
    assert {share.source for share in made.shares} <= {caller().home}
