"""Programs that private sites start: each may end at any moment, and so before it is looked at."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from encamp.batch.gridengine.host import Process
from encamp.batch.slurm.keeper import members
from encamp.batch.slurm.places import Running
from encamp.model.errors import EncampError


def ended() -> int:
    """The number of a process that is no more."""
    with subprocess.Popen(["/bin/true"]) as process:
        return process.pid


def test_a_program_that_has_ended_already_is_told_with_what_it_said(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("no such option")
    with pytest.raises(EncampError, match="ended as soon as") as caught:
        Running(ended(), log)
    assert caught.value.detail == "no such option"


def test_a_program_that_has_just_ended_is_killed_without_ado() -> None:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as outer:
        process = Process(outer, ended())
        process.kill(signal.SIGUSR1)
        assert process.running()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_site_is_told_apart_from_what_others_have_mounted_under_any_name(tmp_path: Path) -> None:
    place = os.fsencode(tmp_path) + b"/\xff"
    os.mkdir(place)  # noqa: PTH102
    script = 'mount -t tmpfs none "$1" && echo && read line'
    words: list[str | bytes] = ["unshare", "--mount", "sh", "-c", script, "sh", place]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert members("/nowhere") == []
