"""Triggers: expressions that are watched, and what is done when they become true."""

from encamp.core.triggers.engine import Engine
from encamp.core.triggers.memory import OneTrigger, TriggerMemory
from encamp.core.triggers.problems import Problem
from encamp.core.triggers.trigger import check

__all__ = ["Engine", "OneTrigger", "Problem", "TriggerMemory", "check"]
