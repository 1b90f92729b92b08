"""The plug-in is for a Slurm that is there."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.batch.starter.double import SOURCES


def test_where_slurm_is_not_installed_nothing_is_built_and_nothing_fails(tmp_path: Path) -> None:
    plugin = tmp_path / "encamp_spank.so"
    without_headers = "CC=cc -nostdinc"
    words = ["make", "-C", str(SOURCES.parent / "spank"), f"OUT={plugin}", without_headers]
    subprocess.run(words, check=True, capture_output=True)
    subprocess.run([*words, "--question"], check=True, capture_output=True)
    assert not plugin.exists()
