"""What a command of a request stands on: its owner's home, and what it needs of the agent's."""

from __future__ import annotations

import os
import pwd

from encamp.agent import owners
from encamp.agent.commands.family import die_with
from encamp.agent.commands.fetching import Fetching, missing
from encamp.agent.commands.plugin import Context
from encamp.agent.commands.records import Records
from encamp.agent.commands.stage import Telling
from encamp.agent.keeper import Keeper
from encamp.describe.environments import also_here, host_environment, unknown_environment
from encamp.home import SYSTEM_HOME, Home
from encamp.machines import sockets
from encamp.meeting.kept import Kept
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.request import Request

MEET = "meet"
"""In the command's directory: where its clients come to."""


class Ground:
    """Made while the process still has the agent's rights; `take` gives them up."""

    def __init__(self, context: Context, owner: str, *, keep: bool = False) -> None:
        self._agent = context.home
        self._account = owners.account(owner)
        self._is_ours = self._account.pw_uid == os.geteuid()
        directory = Records(context.home).directory(context.id)
        self.fetching: Fetching | None = None
        self.telling = Telling(directory)
        self.listener = sockets.listen(directory.path, MEET)
        self.kept: Kept | None = None
        if keep:
            directory.kept.mkdir(mode=0o700, exist_ok=True)
            os.chown(directory.kept, self._account.pw_uid, self._account.pw_gid)
            self.kept = Kept(directory.kept)

    def environment(self, request: Request) -> Environment:
        """As this host's administrator describes it. Its image serves all owners: if it is not
        here, it is got for all of them. Templates are each owner's own: what a guest made up when
        it booted, such as keys, is to be known to nobody else's.

        What this host does not describe comes with the request. All that is done for it is done by
        the owner's process, its image too: nobody's description gets anything with the agent's
        rights."""
        environment = host_environment(request.environment)
        if environment is None:
            return _brought(request)
        if request.own:
            raise also_here(request.environment)
        if not self._is_ours and missing(self._agent, environment):
            self.fetching = Fetching(self._agent, environment)
        return environment

    def take(self) -> Keeper:
        """From here on the process is the owner's."""
        return _keeper(self._agent, self._account)


def _brought(request: Request) -> Environment:
    environment = request.described
    if environment is None or environment.name != request.environment:
        raise unknown_environment(request.environment, lambda users: not users)
    if request.own and (environment.qemu or environment.enrol is not None):
        # The manager has read it and knows that; it is not believed in what gives rights.
        raise EncampError(
            Code.NOT_PERMITTED,
            f"Environment '{environment.name}' says what only an administrator may say.",
            "Leave 'qemu' and 'enrol' out.",
        )
    return environment


def keeper_for(agent: Home, uid: int) -> Keeper:
    """The keeper of an owner's machines, in a process that is the owner's from here on."""
    return _keeper(agent, owners.numbered(agent, uid))


def _keeper(agent: Home, account: pwd.struct_passwd) -> Keeper:
    is_ours = account.pw_uid == os.geteuid()
    parent = os.getppid()
    home = owners.become(account, agent)
    # Whoever changes its user is no longer told of its parent's death.
    die_with(parent)
    return Keeper.open(home, SYSTEM_HOME if is_ours else agent.root)
