"""The recipes of the images that Encamp ships, by the names of their environments."""

from __future__ import annotations

import functools

from encamp.model.recipe import Recipe

MINI: Recipe
"""BusyBox and nothing else: the smallest machine that can run a command."""
DEBIAN12: Recipe
SHIPPED: dict[str, Recipe]


def __getattr__(name: str) -> object:
    """Read from the shipped descriptions by whoever wants one of them."""
    if name == "SHIPPED":
        return _recipes()
    if name.isupper() and name.lower() in _recipes():
        return _recipes()[name.lower()]
    raise AttributeError(name)


@functools.cache
def _recipes() -> dict[str, Recipe]:
    from encamp.describe.environments import shipped_library

    found = shipped_library().all()
    return {name: shown.image for name, shown in found.items() if isinstance(shown.image, Recipe)}
