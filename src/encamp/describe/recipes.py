"""From the attribute `image` to the image: by name, or the recipe that builds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from encamp.describe.attributes import ENVIRONMENT, ORIGINS
from encamp.describe.inheritance import Description, Prototype, lacks
from encamp.describe.nodes import Mapping, Mistakes, Node
from encamp.model.recipe import Kind, Recipe

LAYERS = 32
"""Images that stand on one another."""
TOO_HIGH = f"this image stands on more than {LAYERS} others"


class Recipes:
    """The images of environments. Heirs that do not change an image share its recipe."""

    def __init__(
        self,
        described: dict[str, Description],
        prototype: Callable[[Description], Prototype],
        settle: Callable[[Description], Mapping],
        mistakes: Mistakes,
    ) -> None:
        self.described = described
        self.prototype = prototype
        self.settle = settle
        self.mistakes = mistakes
        self.made: dict[int, tuple[Mapping, Recipe | None]] = {}
        """By the node that describes it, which is kept so that no other can take its place."""
        self.making: list[str] = []

    def image(self, description: Description, settled: Mapping) -> Recipe | str | None:
        """An environment's image; None if it has none, which is reported."""
        node = settled.entries.get("image")
        if node is None:
            if not lacks(description, "image", self.mistakes):
                self.mistakes.add(
                    description.source,
                    description.line,
                    description.column,
                    f"environment '{description.name}' has no image: it needs 'image', or to"
                    " extend an environment that has one",
                )
            return None
        value = ENVIRONMENT.entry(settled, "image", node, self.mistakes)
        if not isinstance(value, dict) or not isinstance(node, Mapping):
            return value if isinstance(value, str) else None
        if id(node) not in self.made:
            own = self.prototype(description)
            # An image that depends on other attributes is a different one for every heir.
            inherited = own.values.entries.get("image") is node
            author = own.image_of if inherited and own.image_of is not None else description
            self.made[id(node)] = node, self._recipe(author, node, value)
        return self.made[id(node)][1]

    def _recipe(self, author: Description, node: Mapping, values: dict[str, Any]) -> Recipe | None:
        given = [origin for origin in ORIGINS if origin in values]
        if len(given) != 1:
            said = "says nothing it starts from" if not given else "starts from several things"
            self.mistakes.at(node, f"this image {said}: one of {', '.join(ORIGINS)} is expected")
            return None
        (origin,) = given
        kind = ORIGINS[origin]
        facts = {key: value for key, value in values.items() if key not in ORIGINS}
        facts.setdefault("name", author.name)
        if kind in (Kind.DEBIAN, Kind.MINI):
            if "suite" in facts:
                self.mistakes.at(
                    node.entries["suite"], f"'{origin}' says already which release it is"
                )
                return None
            facts["suite"] = values[origin]
        elif kind is Kind.LAYER:
            parent = self._parent(author, node.entries["from"], values["from"])
            if parent is None:
                return None
            facts["parent"] = parent
        else:
            facts["source"] = values[origin]
        return Recipe(kind=kind, **facts)

    def _parent(self, author: Description, node: Node, name: str) -> Recipe | str | None:
        """The image of another environment that can be seen from here, or else one by name."""
        other = self.described.get(name)
        if other is None or other.source.rank > node.source.rank:
            return name
        self.making.append(author.name)
        try:
            if name in self.making:
                ring = " → ".join([*self.making[self.making.index(name) :], name])
                self.mistakes.at(node, f"this image stands on itself: {ring}")
                return None
            if len(self.making) > LAYERS:
                self.mistakes.at(node, TOO_HIGH)
                return None
            parent = self.image(other, self.settle(other))
        finally:
            self.making.pop()
        if parent is None:
            self.mistakes.at(node, f"environment '{name}' has no image to stand on")
        elif _height(parent) > LAYERS:
            self.mistakes.at(node, TOO_HIGH)
            return None
        return parent


def _height(image: Recipe | str | None) -> int:
    """How many images are needed to build one, itself included."""
    height = 0
    while image is not None:
        height += 1
        image = image.parent if isinstance(image, Recipe) else None
    return height
