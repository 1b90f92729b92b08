"""Sessions with the guests of machines that may be gone at any moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from encamp.agent.session import Port
from encamp.machines.directory import MachineDirectory
from encamp.model.errors import Code, EncampError


def test_a_machine_that_was_just_removed_is_lost(tmp_path: Path) -> None:
    with pytest.raises(EncampError, match="was removed") as caught:
        Port.take(MachineDirectory(tmp_path / "gone"))
    assert caught.value.code is Code.MACHINE_LOST
