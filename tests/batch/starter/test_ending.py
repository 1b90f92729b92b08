"""How a starter ends: as its job did, and never better."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.batch.starter.double import Door


@pytest.mark.parametrize("code", [0, 3, 255])
def test_it_ends_with_the_exit_code_of_the_job(door: Door, code: int) -> None:
    process = door.start("slurm:mini", "--", "true")
    visit = door.accept()
    visit.answer(b"A", b"17")
    visit.answer(b"B")
    visit.ended(code)
    assert door.finish(process) == (code, b"", b"")


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGRTMIN]
)
def test_it_dies_of_the_signal_that_killed_the_job_and_leaves_no_core(
    door: Door, number: int, tmp_path: Path
) -> None:
    process = door.start("slurm:mini", "--", "true", cwd=tmp_path)
    visit = door.accept()
    visit.answer(b"B")
    visit.ended(number, signal=True)
    assert door.finish(process) == (-number, b"", b"")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("payload", [b"\1\0", b"\1\x7f", b"\2\0"])
def test_an_end_that_makes_no_sense_is_not_a_success(door: Door, payload: bytes) -> None:
    process = door.start("slurm:mini", "--", "true")
    visit = door.accept()
    visit.answer(b"B")
    visit.answer(b"E", payload)
    assert door.finish(process)[0] == 75


@pytest.mark.parametrize(("said", "code"), [(7, 7), (0, 1)])
def test_a_failure_is_told_on_stderr_and_is_never_a_success(
    door: Door, said: int, code: int
) -> None:
    process = door.start("slurm:mini", "--", "true")
    door.accept().answer(b"F", bytes([said]) + "There is no environment 'müsli'.\n".encode())
    assert door.finish(process) == (
        code,
        b"",
        "encamp: There is no environment 'müsli'.\n".encode(),
    )


def test_a_refusal_is_heard_by_who_is_still_talking(door: Door, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_bytes(b"#" * (4 << 20))
    process = door.start("slurm:mini", script)
    assert door._socket is not None
    connection, _ = door._socket.accept()
    with connection:
        connection.sendall(b"\4\0\0\0F\5bad")
    assert door.finish(process) == (5, b"", b"encamp: bad\n")


def test_a_note_is_told_and_the_job_goes_on(door: Door) -> None:
    process = door.start("slurm:mini", "--", "true")
    visit = door.accept()
    visit.answer(b"N", b"The image is being copied.")
    visit.answer(b"B")
    visit.answer(b"N", b"")
    visit.answer(b"?", b"what a later version may say")
    visit.ended(4)
    assert door.finish(process) == (4, b"", b"encamp: The image is being copied.\nencamp: \n")


def test_a_long_text_is_told_whole(door: Door) -> None:
    text = b"".join(b"%d " % number for number in range(9000)).strip()
    process = door.start("slurm:mini", "--", "true")
    door.accept().answer(b"F", b"\1" + text)
    assert door.finish(process) == (1, b"", b"encamp: " + text + b"\n")


def test_words_may_come_in_pieces(door: Door) -> None:
    process = door.start("slurm:mini", "--", "true")
    visit = door.accept()
    for byte in b"\0\0\0\0B\2\0\0\0E\0\x09":
        visit.say(bytes([byte]))
    assert door.finish(process)[0] == 9


@pytest.mark.parametrize(("said", "code"), [(99, 99), (0, 75)])
def test_a_job_that_was_given_back_ends_as_its_batch_system_wants(
    door: Door, said: int, code: int
) -> None:
    process = door.start("slurm:mini", "--", "true")
    door.accept().answer(b"G", bytes([said, 0]) + b"Back in the queue.")
    assert door.finish(process) == (code, b"", b"encamp: Back in the queue.\n")


def test_a_job_that_was_given_back_waits_for_its_batch_system_to_end_it(door: Door) -> None:
    process = door.start("slurm:mini", "--", "true")
    visit = door.accept()
    visit.answer(b"B")
    visit.answer(b"G", b"\x4b\1Back in the queue.")
    assert process.stderr is not None
    assert process.stderr.readline() == b"encamp: Back in the queue.\n"
    assert process.poll() is None
    process.send_signal(signal.SIGCONT)  # Slurm sends this one first
    process.send_signal(signal.SIGTERM)
    assert door.finish(process)[0] == -signal.SIGTERM
