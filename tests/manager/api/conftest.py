from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.manager.api.calling import Calling, calling


@pytest.fixture
async def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Calling]:
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path / "etc"))
    monkeypatch.setenv("ENCAMP_USER_CONFIG", str(tmp_path / "user"))
    async with calling(tmp_path / "home") as made:
        yield made
