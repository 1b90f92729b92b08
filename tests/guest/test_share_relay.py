"""The relay of a machine's shares, between this host's kernel and a server that tests make up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_fuse = pytest.mark.skipif(
    os.getuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK),
    reason="mounting a file system takes root and /dev/fuse",
)


def run(program: Path, scenario: str, seconds: float = 60) -> None:
    """In a mount namespace of its own. With its process, the server's end of the relay ends."""
    stub = [sys.executable, "-m", "tests.guest.share_stub", str(program), scenario]
    done = subprocess.run(
        ["unshare", "-m", *stub], capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_fuse
@pytest.mark.parametrize("scenario", ["with_window", "without_window"])
def test_data_is_the_same_on_both_sides(guest_program: Path, scenario: str) -> None:
    run(guest_program, scenario)


@needs_fuse
def test_requests_get_their_own_data_when_slots_run_short(guest_program: Path) -> None:
    run(guest_program, "many")


@needs_fuse
def test_what_the_server_need_not_know_does_not_travel(guest_program: Path) -> None:
    run(guest_program, "spared")


@needs_fuse
def test_hint_is_taken_once_and_only_while_it_is_true(guest_program: Path) -> None:
    run(guest_program, "hinted")


@needs_fuse
def test_notification_waits_for_an_answer_behind_it(guest_program: Path) -> None:
    run(guest_program, "taken_back")


@needs_fuse
@pytest.mark.parametrize("scenario", ["gone", "gone_at_once", "nonsense"])
def test_requests_fail_at_once_without_a_server(guest_program: Path, scenario: str) -> None:
    run(guest_program, scenario)


@needs_fuse
def test_relay_ends_although_its_server_does_not_answer(guest_program: Path) -> None:
    run(guest_program, "unanswered_end")
