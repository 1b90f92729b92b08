"""Finding property plug-ins by their entry points: which there are, and each when it is needed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from encamp.agent.plugins import installed
from encamp.agent.properties.plugin import GROUP, Plugin
from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger(__name__)


class Plugins:
    """The plug-ins that are installed. Looking for them is put off until the first is asked for,
    and importing one until it is used."""

    def __init__(self) -> None:
        self._found: dict[str, EntryPoint] | None = None
        self._loaded: dict[str, Plugin] = {}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._entries())

    def loaded(self, name: str) -> Plugin | None:
        """The plug-in, if it has been imported."""
        return self._loaded.get(name)

    def load(self, name: str) -> Plugin:
        """The plug-in; importing it may take a while, so not for an event loop."""
        entry = self._entries().get(name) or self._entries(again=True).get(name)
        if entry is None:
            raise EncampError(
                Code.CONFIGURATION,
                f"No plug-in '{name}' for properties is installed.",
                f"There are: {', '.join(sorted(self._entries()))}.",
            )
        plugin = entry.load()
        if not callable(plugin):
            raise EncampError(
                Code.CONFIGURATION, f"The plug-in '{name}' ({entry.value}) is no function."
            )
        self._loaded[name] = plugin
        return plugin  # type: ignore[no-any-return]

    def _entries(self, *, again: bool = False) -> dict[str, EntryPoint]:
        """What is installed; looked for again if it may have been installed since."""
        if self._found is None or again:
            self._found, others = installed(GROUP)
            for entry in others:
                log.warning(
                    "The plug-in '%s' for properties is %s; %s is left out.",
                    entry.name,
                    self._found[entry.name].value,
                    entry.value,
                )
        return self._found
