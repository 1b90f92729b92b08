"""The images and templates of a simulated host: each is copied or made once, for all who wait."""

from __future__ import annotations

from collections.abc import Callable

from encamp.sim.site import HostKind, Wanted
from encamp.sim.world import World

Then = Callable[[str], None]
"""Is told what went wrong; nothing: it is there."""
Later = Callable[..., None]
"""Does something after so many seconds, unless the host crashes before."""


class Stock:
    def __init__(self, name: str, kind: HostKind, world: World, later: Later) -> None:
        self._name = name
        self._kind = kind
        self._world = world
        self._later = later
        self.images = set(kind.images)
        self.templates: set[str] = set()
        self._copied: dict[str, list[Then]] = {}
        """Images that are being copied, and who waits for each."""
        self._templated: dict[str, list[Then]] = {}
        self.changed: Callable[[], None] = lambda: None
        """Called when there is another image."""

    def copy(self, environment: Wanted, then: Then) -> None:
        """Have an image that is not there; one that is being copied is waited for."""
        waiting = self._copied.setdefault(environment.name, [])
        waiting.append(then)
        if len(waiting) == 1:
            self._world.tally.images_copied += 1
            self._world.tally.bytes_copied += environment.image
            fails = self._world.troubles.strikes(self._world.troubles.copy)
            seconds = environment.image / self._kind.network
            self._later(seconds, self._is_copied, environment.name, fails)

    def _is_copied(self, name: str, fails: bool) -> None:
        self._world.log.say(self._name, "cannot copy image" if fails else "has image", name)
        if not fails:
            self.images.add(name)
            self.changed()
        for then in self._copied.pop(name):
            then("the image could not be copied" if fails else "")

    def make_template(self, environment: Wanted, then: Then) -> None:
        """Have a template that is not there; one that is being made is waited for."""
        waiting = self._templated.setdefault(environment.name, [])
        waiting.append(then)
        if len(waiting) == 1:
            self._world.tally.templates_made += 1
            fails = self._world.troubles.strikes(self._world.troubles.start)
            self._later(environment.template, self._is_made, environment.name, fails)

    def _is_made(self, name: str, fails: bool) -> None:
        if not fails:
            self.templates.add(name)
        for then in self._templated.pop(name):
            then("the template could not be made" if fails else "")

    def crash(self) -> None:
        """What is being copied or made is not; what is there stays."""
        self._copied.clear()
        self._templated.clear()
