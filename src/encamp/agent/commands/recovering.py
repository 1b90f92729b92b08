"""Clears what killed commands left of machines: python -m encamp.agent.commands.recovering HOME
[OWNER]

In a process of its own, since the agent has no use for all that this imports; and since in the
home of another owner, by number, only that owner works.
"""

from __future__ import annotations

import sys
from pathlib import Path

from encamp.agent.owners import become, numbered
from encamp.agent.recovery import recover
from encamp.home import Home

if __name__ == "__main__":
    home = Home(Path(sys.argv[1]))
    for number in sys.argv[2:]:
        home = become(numbered(home, int(number)), home)
    recover(home.prepare())
