"""PBS' commands, where tools/setup has put them: their package is not to be had beside that of Grid
Engine's commands, which have the same names."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT

UNPACKED = ROOT / ".cache" / "torque" / "usr"


class Commands:
    """A copy of them that every account can run."""

    def __init__(self, directory: Path) -> None:
        if not UNPACKED.is_dir():
            pytest.fail("PBS' commands are missing: run 'tools/setup test'")
        shutil.copytree(UNPACKED, directory, symlinks=True)
        libraries = [*(directory / "lib").glob("*/perl5/*"), directory / "share" / "perl5"]
        self.directory = directory / "bin"
        self.variables = {
            "PATH": f"{self.directory}:{os.environ['PATH']}",
            "PERL5LIB": ":".join(map(str, libraries)),
        }
