"""What a command of a bait stands on. All that needs the agent's rights is done first; then the
process becomes the owner of the job."""

from __future__ import annotations

import os

import msgspec

from encamp.agent import owners
from encamp.agent.bait.choosing import may_stay
from encamp.agent.bait.errand import Errand
from encamp.agent.bait.grouping import Groups
from encamp.agent.bait.shielding import shielded
from encamp.agent.commands.family import die_with
from encamp.agent.commands.fetching import Fetching, missing
from encamp.agent.commands.plugin import Context
from encamp.agent.commands.records import Records
from encamp.agent.commands.stage import Telling
from encamp.agent.keeper import Keeper
from encamp.describe.environments import find_environment
from encamp.home import SYSTEM_HOME
from encamp.model.property import Value


class Ground:
    """Made while the process still has the agent's rights; `take` gives them up."""

    def __init__(self, context: Context, errand: dict[str, Value]) -> None:
        self.errand = msgspec.convert(errand, Errand)
        starter = self.errand.starter
        self._agent = context.home
        self._is_ours = starter.uid == os.geteuid()
        self._home = context.home
        self.directory = Records(context.home).directory(context.id)
        self.telling = Telling(self.directory)
        self.environment = find_environment(self.errand.environment)
        self.fetching: Fetching | None = None
        if not (self._is_ours or self.errand.host) and missing(context.home, self.environment):
            self.fetching = Fetching(context.home, self.environment)
        stays = may_stay(self.environment) and not self.errand.host
        self.groups = Groups(starter.pid, starter.uid, stays=stays)

    def take(self) -> None:
        """From here on the process is the owner's."""
        starter = self.errand.starter
        parent = os.getppid()
        # A machine that may stay is not to be found by what ends all that is left of its job.
        groups = [group for group in starter.groups if group not in self.errand.marks]
        account = owners.by_number(starter.uid)
        with shielded(parent):
            self._home = owners.become(account, self._agent, gid=starter.gid, groups=groups)
            # Whoever changes its user is no longer told of its parent's death.
            die_with(parent)

    def keeper(self) -> Keeper:
        """Of the owner's machines."""
        return Keeper.open(self._home, SYSTEM_HOME if self._is_ours else self._agent.root)
