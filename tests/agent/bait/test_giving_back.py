"""Jobs that cannot be run here go back to their batch system: at once, or after as many tries as
the settings say; and they are held if nothing would be different the next time."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp.model.size import MIB
from tests.agent.bait.hosting import Host, Person

pytestmark = pytest.mark.site

AGAIN, HELD = 99, 100
"""Exit codes of what was given back, in this batch system."""


@pytest.fixture(scope="module", autouse=True)
def impatient(camp: tuple[Host, list[Person]]) -> Iterator[None]:
    """A host that soon gives up."""
    host, _ = camp
    with host.described("tries: 2\nfailures: 4\n"):
        yield


def test_unknown_environment_holds_the_job(host: Host, alice: Person) -> None:
    id = host.job(alice)
    done = host.run(alice, "/bin/true", id=id, environment="nowhere")
    assert done.returncode == HELD
    assert b"nowhere" in done.stderr
    (back,) = host.returned(id)
    assert (back.hold, "nowhere" in back.reason) == (True, True)


def test_job_that_was_granted_too_little_is_held(host: Host, alice: Person) -> None:
    id = host.job(alice, memory=32 * MIB)
    done = host.run(alice, "/bin/true", id=id)
    assert (done.returncode, b"32 MiB" in done.stderr) == (HELD, True)


def test_job_for_which_there_is_no_room_is_tried_and_goes_back(host: Host, alice: Person) -> None:
    id = host.job(alice, memory=1 << 50)
    done = host.run(alice, "/bin/true", id=id)
    assert done.returncode == AGAIN
    (back,) = host.returned(id)
    assert (back.hold, "Not enough memory" in back.reason) == (False, True)
    assert b"--memory" not in done.stderr, "which is no option of a batch system's"


def test_machine_that_does_not_get_ready_gives_the_job_back(host: Host, alice: Person) -> None:
    id = host.job(alice)
    ran = alice.directory / "ran-broken"
    done = host.run(alice, "/bin/touch", str(ran), id=id, environment="broken")
    assert (done.returncode, ran.exists()) == (AGAIN, False)
    (back,) = host.returned(id)
    assert "'exit 3' exited with 3" in back.reason


def test_job_that_came_back_too_often_is_held(host: Host, alice: Person) -> None:
    id = host.job(alice, restarts=3)
    assert host.run(alice, "/bin/true", id=id, environment="broken").returncode == HELD
    assert [back.hold for back in host.returned(id)] == [True]


def test_environment_that_failed_too_often_is_left_alone(host: Host, alice: Person) -> None:
    """By now it has failed four times. Others are not concerned."""
    id = host.job(alice)
    before = host.said()
    done = host.run(alice, "/bin/true", id=id, environment="broken")
    assert done.returncode == AGAIN
    assert "left alone" in host.returned(id)[0].reason
    assert "could not be begun" not in host.said()[len(before) :]
    assert host.run(alice, "/bin/true").returncode == 0


def test_batch_system_that_does_not_answer_is_waited_for(host: Host, alice: Person) -> None:
    silent = host.notes / "silent"
    silent.touch()
    before = len(host.said())
    job = host.start(alice, "/bin/sh", "-c", "exit 6")
    host.wait_for("a starter that has to come again", lambda: "come again" in host.said()[before:])
    silent.unlink()
    assert job.end().returncode == 6


def test_batch_system_that_answers_oddly_is_asked_again(host: Host, alice: Person) -> None:
    id = host.job(alice)
    odd = host.notes / f"{id}.odd"
    odd.touch()
    before = len(host.said())
    job = host.start(alice, "/bin/sh", "-c", "exit 6", id=id)
    host.wait_for("an odd answer", lambda: "what nobody can read" in host.said()[before:])
    odd.unlink()
    assert job.end().returncode == 6


@pytest.mark.parametrize(
    ("variables", "code"),
    [({}, AGAIN), ({"RESTARTED": "1"}, HELD), ({"SLURM_RESTART_COUNT": "3"}, HELD)],
)
def test_job_of_which_only_odd_things_are_said_is_given_back(
    host: Host, alice: Person, variables: dict[str, str], code: int
) -> None:
    id = host.job(alice)
    (host.notes / f"{id}.odd").touch()
    done = host.run(alice, "/bin/true", id=id, variables=variables)
    assert (done.returncode, b"what nobody can read" in done.stderr) == (code, True)
    (back,) = host.returned(id)
    assert (back.hold, "what nobody can read" in back.reason) == (code == HELD, True)


def test_job_waits_for_a_batch_system_that_is_too_broken_to_take_it_back(
    host: Host, alice: Person
) -> None:
    id = host.job(alice)
    torn = host.notes / f"{id}.torn"
    torn.touch()
    before = len(host.said())
    job = host.start(alice, "/bin/true", id=id, environment="nowhere")
    host.wait_for("a refusal", lambda: "The notebook is torn" in host.said()[before:])
    torn.unlink()
    assert job.end().returncode == HELD
    assert [back.hold for back in host.returned(id)] == [True]


def test_job_that_can_be_neither_described_nor_given_back_fails_with_a_sentence(
    host: Host, alice: Person
) -> None:
    id = host.job(alice)
    for name in ("odd", "kept"):
        (host.notes / f"{id}.{name}").touch()
    done = host.run(alice, "/bin/true", id=id)
    assert (done.returncode, host.returned(id)) == (75, [])
    assert f"Job {id} failed: The notebook says what nobody can read.".encode() in done.stderr


def test_image_that_is_gone_gives_the_job_back_and_is_no_lost_job(
    host: Host, alice: Person
) -> None:
    environments = host.configuration / "environments.yaml"
    text = environments.read_text()
    environments.write_text(f"{text}\nimageless: {{extends: mini, image: 'nowhere:1'}}\n")
    try:
        id = host.job(alice)
        done = host.run(alice, "/bin/true", id=id, environment="imageless")
        assert done.returncode == AGAIN
        assert "nowhere" in host.returned(id)[0].reason
    finally:
        environments.write_text(text)


def test_full_disk_gives_the_job_back(host: Host, alice: Person) -> None:
    """Nothing can be written down of it, and nothing is left of it."""
    under_way = host.home.root / "commands" / "under-way"
    mount = ("mount", "-t", "tmpfs", "-o", "size=4k,mode=700", "full", str(under_way))
    run(host, *mount)
    try:
        (Path(f"/proc/{host.namespace}/root{under_way}") / "filler").write_bytes(bytes(4096))
        id = host.job(alice)
        done = host.run(alice, "/bin/true", id=id)
        assert done.returncode == AGAIN, done
        assert "disk" in host.returned(id)[0].reason
    finally:
        run(host, "umount", str(under_way))


@pytest.mark.parametrize("files", [1, 2])
def test_disk_that_takes_no_more_files_gives_the_job_back_for_that(
    host: Host, alice: Person, files: int
) -> None:
    """Neither a directory, nor what is in it."""
    under_way = host.home.root / "commands" / "under-way"
    options = f"nr_inodes={files},mode=700"
    run(host, "mount", "-t", "tmpfs", "-o", options, "full", str(under_way))
    said = len(host.said())
    try:
        id = host.job(alice)
        done = host.run(alice, "/bin/true", id=id)
        assert done.returncode == AGAIN, done
        assert "the disk of this host is full" in host.returned(id)[0].reason
        assert b"made a mistake" not in done.stderr
        assert "Traceback" not in host.said()[said:]
    finally:
        run(host, "umount", str(under_way))


def run(host: Host, *words: str) -> None:
    subprocess.run(host.inside(*words), check=True)
