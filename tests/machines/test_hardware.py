"""What machines are made of."""

from __future__ import annotations

from encamp.machines.hardware import EMULATED


def test_emulated_processor_tells_of_neither_way_to_copy_bytes() -> None:
    """A kernel that hears of one alone trusts in the other, too, and does not come up."""
    assert {"erms=off", "fsrm=off"} <= set(EMULATED.split(","))
