"""Clears what killed commands left of machines: python -m encamp.agent.commands.recovering HOME

In a process of its own, since the agent has no use for all that this imports.
"""

from __future__ import annotations

import sys
from pathlib import Path

from encamp.agent.recovery import recover
from encamp.home import Home

if __name__ == "__main__":
    recover(Home(Path(sys.argv[1])).prepare())
