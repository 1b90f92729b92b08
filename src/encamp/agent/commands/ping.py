"""`agent.ping`: is the way to this agent, and back, in order?"""

from __future__ import annotations

from typing import Annotated

from encamp.agent.commands.plugin import Context, command


@command(timeout=10)
def ping(context: Context, *, text: Annotated[str, "what the agent is to answer"] = "pong") -> str:
    """Answer; shows that commands reach this agent and are carried out."""
    return text
