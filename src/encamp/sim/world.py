"""What all parts of a simulation share."""

from __future__ import annotations

from encamp.model.command import CommandDefinition
from encamp.model.trigger import TriggerDefinition
from encamp.sim.clock import Clock
from encamp.sim.log import Log
from encamp.sim.site import Wanted
from encamp.sim.tally import Tally
from encamp.sim.troubles import Troubles

FIRST_USER = 1000


class World:
    def __init__(self, clock: Clock, log: Log, troubles: Troubles, tally: Tally) -> None:
        self.clock = clock
        self.log = log
        self.troubles = troubles
        self.tally = tally
        self.environments: dict[str, Wanted] = {}
        self.run_times: dict[str, float] = {}
        """How long the command of each request runs."""
        self.installed = False
        """Every environment is installed on its hosts: no machine has to be made."""
        self.users: dict[str, int] = {}
        """The numbers of all users that there are."""
        self.groups: tuple[str, ...] = ()
        """Groups of hosts."""
        self.triggers: tuple[TriggerDefinition, ...] = ()
        self.commands: dict[str, CommandDefinition] = {}
        """What triggers can tell hosts to do."""
        self.told: tuple[str, ...] = ()
        """Moving properties of hosts that somebody wants to know."""

    def add_user(self, name: str) -> None:
        self.users.setdefault(name, FIRST_USER + len(self.users))
