"""Traces: what is read of them, and what is said of those that are broken."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from encamp.model.errors import Code, EncampError
from encamp.sim.trace import Trace, TraceJob, read_trace

PLAIN = "7 100 5 60 4 -1 -1 8 3600 2048 1 12 3 9 2 -1 -1 -1"


def written(directory: Path, *lines: str) -> Path:
    path = directory / "jobs.swf"
    path.write_text("; Computer: none\n;\n" + "\n".join(lines) + "\n")
    return path


def read(directory: Path, *lines: str) -> Trace:
    return read_trace(written(directory, *lines))


def one(directory: Path, line: str) -> TraceJob:
    [job] = read(directory, line).jobs
    return job


def test_fields_of_a_job_are_read(tmp_path: Path) -> None:
    assert one(tmp_path, PLAIN) == TraceJob(
        line=3,
        number=7,
        submitted=100,
        run=60,
        cpus=4,
        memory=2048,
        user="12",
        user_group="3",
        program="9",
        queue="2",
    )


def test_trace_packed_by_gzip_is_the_same(tmp_path: Path) -> None:
    plain = written(tmp_path, PLAIN)
    packed = tmp_path / "jobs.swf.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_trace(packed).jobs == read_trace(plain).jobs


def test_what_is_not_known_is_not_there(tmp_path: Path) -> None:
    job = one(tmp_path, "7 100 -1 60 4 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1 -1")
    assert (job.memory, job.user, job.user_group, job.program, job.queue) == (None, "", "", "", "")


def test_processors_asked_for_stand_in_for_those_that_were_given(tmp_path: Path) -> None:
    assert one(tmp_path, PLAIN.replace(" 60 4 ", " 60 -1 ")).cpus == 8


@pytest.mark.parametrize(
    "line",
    [
        PLAIN.replace(" 60 4 ", " -1 4 "),
        PLAIN.replace(" 60 4 ", " -86400 4 "),
        PLAIN.replace(" 60 4 ", " 60 0 ").replace(" 8 3600", " 0 3600"),
        PLAIN.replace("7 100", "7 -1"),
    ],
    ids=["run time not known", "negative run time", "no processors", "submit time not known"],
)
def test_jobs_of_which_too_little_is_known_are_left_out_and_counted(
    tmp_path: Path, line: str
) -> None:
    trace = read(tmp_path, line, PLAIN)
    assert (len(trace.jobs), trace.left_out) == (1, 1)


def test_request_as_it_was_written_gives_nodes_and_properties(tmp_path: Path) -> None:
    job = one(tmp_path, f"{PLAIN} {{12,12}} q_1d 2:ppn=8:x86_64:cl_big#excl+1:ppn=2:mem=3gb:x86_64")
    assert job.queue == "q_1d"
    assert job.nodes == ((2, 8), (1, 2))
    assert job.properties == ("x86_64", "cl_big")


def test_jobs_are_sorted_and_the_first_that_was_out_of_order_is_told(tmp_path: Path) -> None:
    trace = read(tmp_path, PLAIN, PLAIN.replace("7 100", "8 40"), PLAIN.replace("7 100", "9 50"))
    assert [job.submitted for job in trace.jobs] == [40, 50, 100]
    assert trace.unsorted == 4


def test_all_broken_lines_are_told_with_their_places(tmp_path: Path) -> None:
    with pytest.raises(EncampError) as raised:
        read(tmp_path, "1 2 3", PLAIN, PLAIN.replace(" 60 4 ", " sixty 4 "), f"{PLAIN[:-2]}nan")
    error = raised.value
    path = tmp_path / "jobs.swf"
    assert error.code is Code.CONFIGURATION
    assert f"{path}:3:1: a job has 18 fields, and this line has 3" in error.detail
    assert f"{path}:5:9: field 4 (run time) must be a number, -1 if it is not known" in error.detail
    assert f"{path}:6:" in error.detail
    assert "'sixty'" in error.detail


@pytest.mark.parametrize("lines", [[], ["7 100 5 -1 4" + " -1" * 13]], ids=["empty", "none ran"])
def test_trace_without_a_job_says_what_one_looks_like(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(EncampError, match=r"no job in .*that has run") as raised:
        read(tmp_path, *lines)
    assert "one job a line" in raised.value.hint


def test_trace_that_is_not_there_or_cut_off_is_told(tmp_path: Path) -> None:
    with pytest.raises(EncampError, match="cannot be read") as raised:
        read_trace(tmp_path / "nothing.swf")
    assert raised.value.code is Code.INPUT_MISSING
    cut = tmp_path / "cut.swf.gz"
    cut.write_bytes(gzip.compress(PLAIN.encode() * 100)[:-20])
    with pytest.raises(EncampError, match="cannot be unpacked") as raised:
        read_trace(cut)
    assert raised.value.code is Code.CORRUPT
