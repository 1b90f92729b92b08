"""What a starter does not even take to the door."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from encamp.agent.bait.frames import MOST_FIELDS
from tests.batch.starter.double import Door


@pytest.mark.parametrize(
    "name",
    ["../etc", "a b", "-x", ".hidden", "a/b", "a;reboot", "a\nb", "\x1b[2J", "ä", "x" * 65, "a:b"],
)
@pytest.mark.parametrize("system", ["slurm", "gridengine"])
def test_a_hostile_name_is_refused_and_not_repeated(
    closed_door: Door, name: str, system: str
) -> None:
    if system == "slurm":
        process = closed_door.start(f"slurm:{name}", "--", "true")
    else:
        variables = {"ENCAMP_ENVIRONMENT": name, "JOB_ID": "1"}
        process = closed_door.start("gridengine", "true", variables=variables)
    code, out, err = closed_door.finish(process)
    assert (code, out) == (64, b"")
    assert err.startswith(b"encamp: What the job asks for cannot be the name of an environment.")
    assert err.count(b"\n") == 1
    assert b"\x1b" not in err


def test_the_longest_name_is_taken(door: Door) -> None:
    process = door.start("slurm:" + "x" * 64, "--", "true")
    visit = door.accept()
    assert visit.only("e") == b"x" * 64
    visit.ended(0)
    door.finish(process)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["Lsf:mini", "--", "true"],
        ["lsf", "true"],
        ["5x:a", "--", "true"],
        ["x" * 64 + ":", "--", "y"],
        ["slurm:mini"],
        ["slurm:mini", "--"],
        ["slurmx"],
    ],
)
def test_a_call_that_makes_no_sense_is_refused(closed_door: Door, words: list[str]) -> None:
    code, out, err = closed_door.finish(closed_door.start(*words))
    assert (code, out) == (64, b"")
    assert err.startswith(b"encamp: ")


def test_a_symbolic_link_in_place_of_the_script_is_refused(
    closed_door: Door, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "script").symlink_to("secret")
    code, _, err = closed_door.finish(closed_door.start("slurm:mini", tmp_path / "script"))
    assert code == 66
    assert b"is a symbolic link" in err


def test_a_script_that_is_no_file_is_refused_and_not_waited_for(
    closed_door: Door, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        code, _, err = closed_door.finish(closed_door.start("slurm:mini", path))
        assert code == 66
        assert b"is not a file" in err


def test_a_script_that_cannot_be_read_is_refused(closed_door: Door, tmp_path: Path) -> None:
    code, _, err = closed_door.finish(closed_door.start("slurm:mini", tmp_path / "none"))
    assert code == 66
    assert b"No such file" in err


def test_a_script_that_is_too_long_is_refused(closed_door: Door, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_bytes(b"#" * ((4 << 20) + 1))
    code, _, err = closed_door.finish(closed_door.start("slurm:mini", script))
    assert code == 65
    assert b"4 MiB can be handed over" in err


def test_variables_that_are_too_long_are_refused(closed_door: Door) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if hard != resource.RLIM_INFINITY and hard < 64 << 20:
        pytest.skip("the kernel does not start programs with that many here")

    def allow() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (64 << 20, hard))

    variables = {f"V{number}": "x" * 100_000 for number in range(25)}
    process = closed_door.start("slurm:mini", "--", "true", variables=variables, preexec_fn=allow)
    code, _, err = closed_door.finish(process)
    assert code == 65
    assert b"2 MiB can be handed over" in err


def test_too_many_arguments_are_refused(closed_door: Door) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if hard != resource.RLIM_INFINITY and hard < 64 << 20:
        pytest.skip("the kernel does not start programs with that many here")

    def allow() -> None:
        resource.setrlimit(resource.RLIMIT_STACK, (64 << 20, hard))

    words = ("x",) * MOST_FIELDS
    process = closed_door.start("slurm:mini", "--", "true", *words, preexec_fn=allow)
    code, _, err = closed_door.finish(process)
    assert code == 65
    assert b"too many arguments and variables: 131" in err
