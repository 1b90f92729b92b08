"""What a workplace is removed with, and what is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = 'mount -t tmpfs none "$1" && exec "$2" -c "$3" "$4"'
LOOK = """
import sys
from pathlib import Path
from encamp.machines.storage_file import file_system
from encamp.workplace import mounted_below

place = Path(sys.argv[1])
print(mounted_below(place), mounted_below(place / "other"), file_system(place / "other"))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
@pytest.mark.parametrize("name", [b"\xff", b"two\rlines", b"a space"])
def test_mounts_are_known_whatever_they_are_called(tmp_path: Path, name: bytes) -> None:
    (tmp_path / "other").mkdir()
    place = os.fsencode(tmp_path) + b"/" + name
    os.mkdir(place)  # noqa: PTH102
    words: list[str | bytes] = ["unshare", "--mount", "sh", "-c", SCRIPT, "sh"]
    words += [place, sys.executable, LOOK, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, check=False)
    assert done.stdout.startswith(b"True False "), done.stderr
