"""Who comes to the door of another's job, of none, or twice for one, is refused and logged."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.agent.bait.hosting import RUN, Host, Person

pytestmark = pytest.mark.site

REFUSED = 77


def test_forged_job_id_is_refused_and_logged(host: Host, alice: Person, bob: Person) -> None:
    hers = host.job(alice)
    his = host.job(bob)
    done = host.run(alice, "/bin/id", id=hers, variables={"PBS_JOBID": his})
    assert done.returncode == REFUSED
    assert b"calls itself" in done.stderr
    assert f"of {alice.name} was refused" in host.said()


def test_process_of_no_job_is_refused(host: Host, alice: Person) -> None:
    """Whatever its variables say."""
    id = host.job(alice)
    done = host.outside(
        alice, host.starter, "pbs:mini", "--", "/bin/id", variables={"PBS_JOBID": id}
    )
    assert done.returncode == REFUSED
    assert b"belongs to no job" in done.stderr


def test_process_in_the_job_of_another_is_refused(host: Host, alice: Person, bob: Person) -> None:
    """As where somebody has got into another's job by some other fault."""
    done = host.run(alice, "/bin/id", id=host.job(bob))
    assert done.returncode == REFUSED
    assert b"not yours" in done.stderr


def test_starter_of_another_batch_system_is_refused(host: Host, alice: Person) -> None:
    done = host.run(alice, program=(host.starter, "slurm:mini", "--", "/bin/id"))
    assert done.returncode == REFUSED


def test_second_starter_of_a_job_is_refused_and_the_first_goes_on(
    host: Host, alice: Person
) -> None:
    id = host.job(alice, cpus=4)
    first = host.start(alice, "/bin/sh", "-c", "echo up; read line; exit 5", id=id, stdin=-1)
    assert first.process.stdout is not None
    assert first.process.stdout.readline() == b"up\n"
    second = host.run(alice, "/bin/id", id=id)
    assert second.returncode == REFUSED
    assert b"has a machine on this host already" in second.stderr
    first.process.communicate(b"go\n", timeout=90)
    assert first.process.returncode == 5


OVER = """
import socket, struct, sys
door, pid = sys.argv[1:]
payload = b"".join(
    struct.pack("<cI", tag, len(value)) + value
    for tag, value in ((b"v", b"\\1"), (b"s", b"pbs"), (b"o", struct.pack("<I", int(pid))))
)
line = socket.socket(socket.AF_UNIX)
line.connect(door)
socket.send_fds(line, [struct.pack("<Ic", len(payload), b"J") + payload], [0, 1, 2])
sys.stdout.buffer.write(line.recv(1000))
"""


def test_nobody_can_say_that_another_starter_is_gone(
    host: Host, alice: Person, bob: Person
) -> None:
    """Neither another user nor the job's own, unless it was killed and its end is held."""
    id = host.job(alice, cpus=4)
    job = host.start(alice, "/bin/sh", "-c", "echo up; read line; exit 5", id=id, stdin=-1)
    assert job.process.stdout is not None
    assert job.process.stdout.readline() == b"up\n"
    for person, of in ((bob, host.job(bob)), (bob, id), (alice, id)):
        words = (sys.executable, "-c", OVER, str(RUN / "bait"), str(job.starter))
        done = host.run(person, program=words, id=of)
        assert b"is not held by process" in done.stdout, done
    job.process.communicate(b"go\n", timeout=90)
    assert job.process.returncode == 5
    assert host.returned(id) == []


def test_environment_that_is_not_for_a_user_holds_the_job(host: Host, alice: Person) -> None:
    id = host.job(alice)
    done = host.run(alice, "/bin/id", id=id, environment="forbidden")
    assert done.returncode == 100
    assert [back.hold for back in host.returned(id)] == [True]
    assert "not for you" in host.returned(id)[0].reason


def test_nobody_else_can_reach_what_carries_a_job_out(
    host: Host, alice: Person, bob: Person
) -> None:
    """Neither by its socket, nor by the directory that it is in."""
    with host.halting("os.mkdir", "/machines/"):
        job = host.start(alice, "/bin/true")
        stopped = host.halted()
    (directory,) = (host.home.root / "commands" / "under-way").iterdir()
    assert directory.stat().st_mode & 0o077 == 0
    tried = host.outside(
        bob, sys.executable, "-c", CONNECT, str(directory / "hand"), str(directory)
    )
    assert tried.stdout.split() == [b"PermissionError", b"PermissionError"], tried
    os.kill(stopped, signal.SIGCONT)
    assert job.end().returncode == 0


CONNECT = """
import os, socket, sys
for attempt in (
    lambda: socket.socket(socket.AF_UNIX).connect(sys.argv[1]),
    lambda: os.listdir(sys.argv[2]),
):
    try:
        attempt()
        print("in")
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("which", ["directory", "read only"])
def test_output_that_cannot_be_written_is_no_success(host: Host, alice: Person, which: str) -> None:
    path = alice.directory if which == "directory" else Path(os.devnull)
    line = f"exec {host.starter} pbs:mini -- /bin/echo hello 1<{path}"
    done = host.run(alice, program=("/bin/sh", "-c", line))
    assert done.returncode not in (0, REFUSED)
    assert b"could not be written" in done.stderr


def test_output_that_nobody_reads_ends_the_job_as_anywhere(host: Host, alice: Person) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = host.run(alice, "/bin/sh", "-c", "while echo y; do :; done", stdout=writing)
    finally:
        os.close(writing)
    assert done.returncode == -signal.SIGPIPE


def test_input_that_is_a_socket_or_a_directory_is_taken_as_it_is(host: Host, alice: Person) -> None:
    ours, its = socket.socketpair()
    with ours, its:
        ours.sendall(b"through a socket")
        ours.shutdown(socket.SHUT_WR)
        assert host.run(alice, "/bin/cat", stdin=its.fileno()).stdout == b"through a socket"
    line = f"exec {host.starter} pbs:mini -- /bin/cat <{alice.directory}"
    assert host.run(alice, program=("/bin/sh", "-c", line)).returncode == 0
