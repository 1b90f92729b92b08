"""Encamp's C programs are compiled where it is installed, by whatever compiler is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

MAKEFILES = sorted(ROOT.glob("src/encamp/*/*/Makefile"))


@pytest.mark.parametrize("makefile", MAKEFILES, ids=lambda path: path.parent.name)
def test_program_is_compiled_without_a_warning(makefile: Path, tmp_path: Path) -> None:
    words = ["make", "-C", str(makefile.parent), f"OUT={tmp_path / 'program'}"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (tmp_path / "program").is_file()
    assert done.stderr == ""


@pytest.mark.parametrize("makefile", MAKEFILES, ids=lambda path: path.parent.name)
def test_warning_of_a_newer_compiler_keeps_nobody_from_installing(makefile: Path) -> None:
    text = makefile.read_text()
    assert "$(WARNINGS)" in text
    assert not re.search(r"-Werror", text)
