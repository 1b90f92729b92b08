"""The environments of the site, as described on the manager's host. Changes in the files count from
the next request on."""

from __future__ import annotations

import asyncio
import time

from encamp.describe import places
from encamp.describe.environments import all_environments, find_environment
from encamp.door.peer import Peer
from encamp.manager.rights import fits_user
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.property import Value


class Environments:
    def __init__(self) -> None:
        self._stamps: list[tuple[bytes | int, ...]] = []
        self._known: dict[str, Environment] = {}

    async def find(self, name: str) -> Environment:
        now = time.time_ns()
        found = places.look(places.environment_places())
        stamps = [entry.stamp for entry in found]
        if stamps != self._stamps:
            self._stamps, self._known = stamps, {}
        known = self._known.get(name)
        if known is None:
            # Reading many descriptions takes its time.
            known = await asyncio.to_thread(find_environment, name)
            if stamps == self._stamps and not places.just_changed(found, now):
                self._known[name] = known
        return known


def environment_facts() -> dict[str, dict[str, Value]]:
    """What expressions can know about each environment."""
    return {name: facts_of(environment) for name, environment in all_environments().items()}


def facts_of(environment: Environment) -> dict[str, Value]:
    image = environment.image
    return {
        "name": environment.name,
        "cpus": environment.size.cpus,
        "memory": environment.size.memory,
        "classes": list(environment.classes),
        "reuse": environment.reuse,
        "enrols": environment.enrol.system if environment.enrol else "",
        "image": image if isinstance(image, str) else image.name or environment.name,
    }


def check_use(environment: Environment, peer: Peer, *, administrator: bool) -> None:
    """Refuse whom the environment is not for."""
    if administrator or not environment.users:
        return
    if not fits_user(environment.users, peer.user, peer.groups):
        raise EncampError(
            Code.NOT_PERMITTED,
            f"Environment '{environment.name}' is not for {peer.user}:"
            f" {', '.join(environment.users)} may use it.",
            "Ask whoever runs this site, or see 'encamp env ls' for others.",
        )
