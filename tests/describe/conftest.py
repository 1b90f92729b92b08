"""A host of the tests' own: its site's, its user's and its current directory's files."""

from __future__ import annotations

import os
from pathlib import Path
from textwrap import dedent

import pytest

from encamp.home import Home

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root chooses the site's files")


class Host:
    def __init__(self, directory: Path) -> None:
        self.site = directory / "site"
        self.user = directory / "user"
        self.here = directory / "here"
        self.home = Home(directory / "home").prepare()
        for made in (self.site, self.user, self.here):
            made.mkdir()

    def write(self, directory: Path, text: str, name: str = "environments.yaml") -> Path:
        path = directory / name
        path.write_text(dedent(text))
        path.chmod(0o644)
        return path


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host(tmp_path)
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(made.site))
    monkeypatch.setenv("ENCAMP_USER_CONFIG", str(made.user))
    monkeypatch.setenv("ENCAMP_HOME", str(made.home.root))
    monkeypatch.delenv("ENCAMP_IMAGE_LIMIT", raising=False)
    monkeypatch.chdir(made.here)
    return made
