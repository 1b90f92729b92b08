"""What PBS' commands print, as it is read: also if a user has tried to say more in it."""

from __future__ import annotations

import pytest

from encamp.batch.pbs.adapter import Pbs
from encamp.batch.pbs.attributes import number_of, one_job, one_node, shares_of
from encamp.batch.slurm.adapter import Slurm
from encamp.model.batch import BatchJob, BatchSettings
from encamp.model.errors import Code, EncampError

JOB = """Job Id:\t17
\tJob_Name = test = 1
\tJob_Owner = alice@login
\tjob_state = R
\tqueue = main
\texec_host = n1/2+n2/1
\teuser = alice(1000)
\tResource_List.ncpus = 3

"""
NODE = """n1
    state = draining
    np = 2
    note = encamp: full (abc)

"""


@pytest.mark.parametrize(("state", "runs"), [("R", True), ("S", True), ("E", True), ("Q", False)])
def test_job_that_is_ending_is_still_here(
    monkeypatch: pytest.MonkeyPatch, state: str, runs: bool
) -> None:
    """Who carries it out asks about it to the last."""
    behind = BatchJob(system="slurm", id="17", uid=1000, cpus=3)
    monkeypatch.setattr(Slurm, "describe", lambda slurm, id: behind)
    told = one_job(JOB.replace("job_state = R", f"job_state = {state}"), "17")
    monkeypatch.setattr(Pbs, "_job", lambda pbs, id: told)
    pbs = Pbs(BatchSettings(system="pbs", programs={"node": "n1"}))
    if runs:
        assert pbs.describe("17").queue == "main"
    else:
        with pytest.raises(EncampError, match="does not run"):
            pbs.describe("17")


def test_job_is_read() -> None:
    told = one_job(JOB, "17")
    assert told["Job_Name"] == "test = 1"
    assert told["Resource_List.ncpus"] == "3"
    assert number_of(told["euser"]) == 1000
    assert shares_of(told["exec_host"]) == {"n1": 2, "n2": 1}


def test_node_is_read() -> None:
    assert one_node(NODE, "n1") == {"state": "draining", "np": "2", "note": "encamp: full (abc)"}


@pytest.mark.parametrize(
    "name",
    [
        "x\n\teuser = root(0)",
        "x\n\nJob Id:\t18\n\tJob_Name = y",
        "x\n\nJob Id:\t17\n\tJob_Name = y",
        "x\n\texec_host = n1/64",
    ],
)
def test_a_name_that_pretends_to_be_more_is_not_believed(name: str) -> None:
    with pytest.raises(EncampError) as caught:
        one_job(JOB.replace("test = 1", name), "17")
    assert caught.value.code is Code.PROTOCOL


@pytest.mark.parametrize("said", ["", JOB.replace("17", "18"), "Problem loading jobs.\n"])
def test_what_is_not_about_the_job_is_not_taken_for_it(said: str) -> None:
    with pytest.raises(EncampError):
        one_job(said, "17")


def test_another_node_is_not_taken_for_this_one() -> None:
    with pytest.raises(EncampError):
        one_node(NODE + NODE.replace("n1", "n2"), "n1")
    with pytest.raises(EncampError):
        one_node(NODE, "n2")


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(EncampError):
        number_of("alice")
    with pytest.raises(EncampError):
        shares_of("n1")
