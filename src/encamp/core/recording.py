"""A recorded site, made into the picture that its manager had of it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from encamp.core.picture import Picture
from encamp.model.command import CommandRecord
from encamp.model.host import Host, Presence
from encamp.model.property import PropertyDefinition


def picture_of(
    hosts: Iterable[Host],
    commands: Iterable[CommandRecord],
    now: float,
    definitions: Iterable[PropertyDefinition] = (),
) -> Picture:
    """The picture that these hosts and commands make; for trying triggers out on it."""
    picture = Picture(definitions)
    for host in hosts:
        picture.learn(host.properties, host.groups, host.name)
        bare = msgspec.structs.replace(host, readings={}, machines=())
        state = picture.put_host(bare)
        picture.put_readings(state, host.readings, all=True)
        picture.put_machines(state, host.machines)
        if host.presence is not Presence.JOINED:
            picture.lose_sight(state, f"host {host.name} is {host.presence.value}")
    for record in commands:
        picture.put_command(record, now)
    return picture
