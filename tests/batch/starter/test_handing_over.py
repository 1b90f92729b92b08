"""What a starter tells of its job, and hands over."""

from __future__ import annotations

import os
import resource
import struct
import subprocess
from pathlib import Path

import pytest

from tests.batch.starter.double import SOURCES, Door

UNLIMITED = (1 << 64) - 1


def test_the_shipped_starter_knows_one_door_and_no_other() -> None:
    subprocess.run(["make", "-C", SOURCES], check=True, capture_output=True)
    program = (SOURCES.parent / "encamp-starter").read_bytes()
    assert b"\0/run/encamp/bait\0" in program
    assert b"/ld-" not in program, "it depends on no library"


def test_a_command_is_told_with_all_that_belongs_to_it(door: Door, tmp_path: Path) -> None:
    variables = {"SLURM_JOB_ID": "17", "ODD": "a=b\nc \xff", "EMPTY": ""}
    words = ["sh", "-c", "echo $1", "", "two words"]
    process = door.start(
        "slurm:debian12", "--", *words, variables=variables, cwd=tmp_path, umask=0o27
    )
    visit = door.accept()
    assert visit.only("v") == b"\1"
    assert visit.only("s") == b"slurm"
    assert visit.only("e") == b"debian12"
    assert visit.fields["a"] == [os.fsencode(word) for word in words]
    assert visit.only("w") == os.fsencode(tmp_path)
    assert struct.unpack("<I", visit.only("u")) == (0o27,)
    assert visit.only("i") == b"17"
    assert visit.fields["t"] + visit.fields["b"] == [b"\0", b"\0"]
    assert not {"p", "n", "r"} & set(visit.fields)
    told = dict(entry.split(b"=", 1) for entry in visit.fields["m"])
    expected = {"PATH": "/usr/bin:/bin", **variables}
    assert told == {os.fsencode(name): os.fsencode(value) for name, value in expected.items()}
    visit.ended(0)
    assert door.finish(process) == (0, b"", b"")


def test_limits_are_told_as_they_are(door: Door) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 7))
        resource.setrlimit(resource.RLIMIT_CPU, (1234, resource.RLIM_INFINITY))

    process = door.start("slurm:mini", "--", "true", preexec_fn=limit)
    visit = door.accept()
    told = {number: pair for number, *pair in map(struct.Struct("<BQQ").unpack, visit.fields["l"])}
    assert told[resource.RLIMIT_CORE] == [0, 7]
    assert told[resource.RLIMIT_CPU] == [1234, UNLIMITED]
    own = [value & UNLIMITED for value in resource.getrlimit(resource.RLIMIT_NOFILE)]
    assert told[resource.RLIMIT_NOFILE] == own
    visit.ended(0)
    door.finish(process)


def test_a_script_is_told_without_the_line_that_called_the_starter(
    door: Door, tmp_path: Path
) -> None:
    script = tmp_path / "slurm_script"
    script.write_text(f"#!{door.program} slurm:debian12\n#!/bin/sh\necho $1\n")
    script.chmod(0o700)
    process = door.start("one", "--", "three", program=[script])
    visit = door.accept()
    assert visit.only("e") == b"debian12"
    assert visit.only("n") == os.fsencode(script)
    assert visit.only("p") == b"#!/bin/sh\necho $1\n"
    assert visit.fields["a"] == [b"one", b"--", b"three"]
    visit.ended(0)
    door.finish(process)


def test_a_script_that_did_not_call_the_starter_is_told_whole(door: Door, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\necho slurm:mini\n")
    process = door.start("slurm:mini", script)
    visit = door.accept()
    assert visit.only("p") == script.read_bytes()
    assert "a" not in visit.fields
    visit.ended(0)
    door.finish(process)


def test_a_job_may_name_no_environment(door: Door) -> None:
    process = door.start("slurm:", "--", "true")
    visit = door.accept()
    assert "e" not in visit.fields
    visit.ended(0)
    door.finish(process)


@pytest.mark.parametrize("words", [["lsf_9:mini", "--", "true"], ["lsf_9", "--", "true"]])
def test_a_batch_system_that_it_knows_nothing_of_is_told_by_its_name(
    door: Door, words: list[str]
) -> None:
    process = door.start(*words)
    visit = door.accept()
    assert visit.only("s") == b"lsf_9"
    assert visit.fields["a"] == [b"true"]
    visit.ended(0)
    assert door.finish(process)[0] == 0


@pytest.mark.parametrize(
    ("words", "variables", "claim"),
    [
        (["slurm:mini", "--", "true"], {"SLURM_JOB_ID": "18", "SLURM_ARRAY_JOB_ID": "17"}, b"18"),
        (["gridengine", "true"], {"JOB_ID": "5", "SGE_TASK_ID": "undefined"}, b"5"),
        (["gridengine", "true"], {"JOB_ID": "5", "SGE_TASK_ID": "3"}, b"5.3"),
        (["pbs:mini", "--", "true"], {"PBS_JOBID": "7.server"}, b"7.server"),
    ],
)
def test_the_id_that_the_variables_claim_is_told(
    door: Door, words: list[str], variables: dict[str, str], claim: bytes
) -> None:
    process = door.start(*words, variables=variables)
    visit = door.accept()
    assert visit.only("i") == claim
    visit.ended(0)
    door.finish(process)


def test_input_and_outputs_are_handed_over_in_order(door: Door) -> None:
    process = door.start("slurm:mini", "--", "cat")
    assert process.stdin is not None
    process.stdin.write(b"from outside")
    process.stdin.flush()
    visit = door.accept()
    read, out, err = visit.streams
    assert os.read(read, 100) == b"from outside"
    os.write(out, b"to output")
    os.write(err, b"to error")
    visit.answer(b"A", b"17")
    visit.answer(b"B")
    visit.ended(0)
    assert door.finish(process) == (0, b"to output", b"to error")


def test_once_the_job_has_begun_its_streams_end_when_it_ends_them(door: Door) -> None:
    process = door.start("slurm:mini", "--", "cat")
    visit = door.accept()
    visit.answer(b"B")
    visit.release_streams()
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.read() == b"", "the starter no longer holds the output open"
    with pytest.raises(BrokenPipeError):
        os.write(process.stdin.fileno(), b"nobody reads any more")
    assert process.poll() is None
    visit.ended(0)
    assert process.wait(60) == 0


def test_a_closed_stream_is_handed_over_as_nothing(door: Door) -> None:
    def close() -> None:
        os.close(0)
        os.close(2)

    process = door.start("slurm:mini", "--", "true", preexec_fn=close)
    visit = door.accept()
    assert os.read(visit.streams[0], 1) == b""
    assert Path(f"/proc/self/fd/{visit.streams[2]}").readlink() == Path("/dev/null")
    assert str(Path(f"/proc/self/fd/{visit.streams[1]}").readlink()).startswith("pipe:")
    visit.ended(0)
    assert door.finish(process)[0] == 0


def test_many_large_variables_arrive(door: Door) -> None:
    variables = {f"V{number}": "x" * 100_000 for number in range(12)}
    process = door.start("slurm:mini", "--", "true", variables=variables)
    visit = door.accept()
    told = dict(entry.split(b"=", 1) for entry in visit.fields["m"])
    assert {name: told[name.encode()].decode() for name in variables} == variables
    visit.ended(0)
    assert door.finish(process)[0] == 0


def test_what_is_no_variable_is_left_out(door: Door) -> None:
    odd = ["-c", "exec env -i =odd A=1 $0 slurm:mini -- true", str(door.program)]
    process = door.start(*odd, program=["/bin/sh"])
    visit = door.accept()
    assert [entry for entry in visit.fields["m"] if not entry.startswith(b"PWD=")] == [b"A=1"]
    visit.ended(0)
    assert door.finish(process)[0] == 0
