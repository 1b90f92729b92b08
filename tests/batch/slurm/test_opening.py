"""A node is closed and opened by its own agent; an administrator's word counts more."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from encamp.batch.slurm.adapter import Slurm
from encamp.batch.slurm.calls import meant
from encamp.batch.slurm.node import with_mark
from encamp.model.batch import Bait, BaitState, BatchSettings
from encamp.model.errors import Code, EncampError
from tests.batch.slurm.private import Cluster, private_cluster, root_only

pytestmark = [pytest.mark.site, root_only]

OPEN = Bait(state=BaitState.OPEN)


STAYS_DOWN = "ReturnToService=1"
"""What an administrator has said to be down does not come back by registering."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    with private_cluster(nodes=2, lines=("MessageTimeout=5", STAYS_DOWN)) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    yield shared
    shared.clear()


@pytest.fixture
def slurm(cluster: Cluster) -> Slurm:
    return cluster.slurm()


def update(cluster: Cluster, state: str, reason: str = "", node: str = "n1") -> None:
    words = ["scontrol", "update", f"NodeName={node}", f"State={state}"]
    cluster.run(*words, *([f"Reason={reason}"] if reason else []))


def test_no_jobs_come_to_a_closed_node_and_those_there_go_on(
    cluster: Cluster, slurm: Slurm
) -> None:
    running = cluster.submit("-w", "n1", "-o", "/dev/null", "--wrap", "sleep 1000")
    cluster.wait_for_state(running, "RUNNING")
    slurm.close("no memory for another machine")
    assert slurm.bait() == Bait(state=BaitState.FULL, reason="no memory for another machine")
    assert cluster.slurm(node=1).bait() == OPEN
    assert "encamp: no memory for another machine" in cluster.run("sinfo", "-R", "-o", "%80E")
    coming = cluster.submit("-w", "n1", "-o", "/dev/null", "--wrap", "true")
    cluster.wait_for("what it waits for", lambda: "ReqNode" in cluster.field(coming, "Reason"))
    assert cluster.state(running) == "RUNNING"
    slurm.open()
    assert slurm.bait() == OPEN
    cluster.wait_for_state(coming, "COMPLETED")
    assert cluster.state(running) == "RUNNING"


def test_closing_and_opening_twice_does_no_harm(slurm: Slurm) -> None:
    slurm.close("full")
    slurm.close("full")
    slurm.close('still [full] "today"\n')
    assert slurm.bait() == Bait(state=BaitState.FULL, reason="still (full) 'today'")
    slurm.open()
    slurm.open()
    assert slurm.bait() == OPEN


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("drain", "a disk is broken"),
        ("drain", "encamp: written by hand"),
        ("drain", f"{with_mark('full')} and a disk is broken"),
        ("drain", f"a disk is broken; was: {with_mark('full')}"),
        ("down", "a disk is broken"),
        ("fail", "a disk is broken"),
    ],
)
def test_what_an_administrator_closed_stays_closed(
    cluster: Cluster, slurm: Slurm, state: str, reason: str
) -> None:
    closed = Bait(state=BaitState.CLOSED, reason=reason)
    other = cluster.slurm(node=1)
    other.close("full")
    for one, node in ((slurm, "n1"), (other, "n2")):
        update(cluster, state, reason, node)
        assert one.bait() == closed
        one.open()
        assert one.bait() == closed
        one.close("full")
        assert one.bait() == closed


def test_a_node_that_an_administrator_opened_is_open(cluster: Cluster, slurm: Slurm) -> None:
    slurm.close("full")
    update(cluster, "resume")
    assert slurm.bait() == OPEN


def test_an_administrator_closes_and_opens_by_encamp_too(slurm: Slurm) -> None:
    slurm.close_for_good("encamp: for a while")
    assert slurm.bait() == Bait(state=BaitState.CLOSED, reason="for a while")
    slurm.open()
    assert slurm.bait().state is BaitState.CLOSED
    slurm.open_for_good()
    assert slurm.bait() == OPEN
    slurm.close("full")
    slurm.open_for_good()
    assert slurm.bait() == OPEN


def test_users_who_close_a_node_hear_whose_affair_that_is(cluster: Cluster, slurm: Slurm) -> None:
    words = ("update", "NodeName=n1", "State=drain", "Reason=mine")
    said = cluster.refused("scontrol", *words, user=cluster.users[0])
    failed = EncampError(Code.COMMAND_FAILED, "scontrol failed.", detail=said)
    ours = meant(failed, "closing the node")
    assert ours is not None, said
    assert ours.code is Code.NOT_PERMITTED
    assert ours.hint == "That takes an administrator of Slurm's."
    assert slurm.bait() == OPEN


def test_a_node_that_slurm_does_not_know_is_unknown(cluster: Cluster) -> None:
    programs = {"conf": str(cluster.site.conf), "node": "elsewhere"}
    stranger = Slurm(BatchSettings(system="slurm", programs=programs))
    assert stranger.bait().state is BaitState.UNKNOWN
    with pytest.raises(EncampError):
        stranger.close("full")


def test_a_node_knows_its_own_name(cluster: Cluster) -> None:
    text = (
        "import sys\n"
        "from encamp.batch.slurm.adapter import Slurm\n"
        "from encamp.model.batch import BatchSettings\n"
        "settings = BatchSettings(system='slurm', programs={'conf': sys.argv[1]})\n"
        "print(Slurm(settings).node)\n"
    )
    said = cluster.site.nodes[1].run([sys.executable, "-c", text, cluster.site.conf])
    assert said.stdout == "n2\n"


def test_a_controller_that_is_gone_is_said_to_be(cluster: Cluster, slurm: Slurm) -> None:
    assert slurm.node == "n1"
    cluster.site.slurmctld.stop()
    try:
        bait = slurm.bait()
        assert bait.state is BaitState.UNKNOWN
        assert "does not answer" in bait.reason
    finally:
        cluster.site.start_controller()
        cluster.site.wait_until_up()
    assert slurm.bait() == OPEN
