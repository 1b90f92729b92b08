"""What goes wrong on a simulated site at the moment."""

from __future__ import annotations

import random


class Troubles:
    """Chances, from 0 to 1, of things that go wrong by themselves. Faults of hosts and daemons
    come as they are planned (faults.py)."""

    def __init__(self, seed: int, *, none: bool) -> None:
        self.none = none
        """Nothing ever goes wrong: no chance is taken."""
        self.chance = random.Random(f"troubles {seed}")
        self.lost = 0.0
        """A message is lost;"""
        self.twice = 0.0
        """comes twice;"""
        self.late = 0.0
        """half of them come later, by so many seconds on average."""
        self.refused = 0.0
        """A host refuses to make a machine."""
        self.copy = 0.0
        """An image cannot be copied."""
        self.start = 0.0
        """A machine cannot be made."""
        self.killed = 0.0
        """A machine dies under its command."""

    def strikes(self, part: float) -> bool:
        return part > 0.0 and self.chance.random() < part

    def calm(self) -> None:
        """From now on nothing goes wrong by itself."""
        self.lost = self.twice = self.late = 0.0
        self.refused = self.copy = self.start = self.killed = 0.0
