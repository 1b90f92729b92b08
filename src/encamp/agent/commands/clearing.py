"""Removes idle machines: python -m encamp.agent.commands.clearing HOME OWNER ID...

By a process of their owner's, in that owner's home."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from encamp.agent.commands.ground import keeper_for
from encamp.agent.reuse import remove_idle
from encamp.home import Home

if __name__ == "__main__":
    keeper = keeper_for(Home(Path(sys.argv[1])), int(sys.argv[2]))
    asyncio.run(remove_idle(keeper, sys.argv[3:]))
