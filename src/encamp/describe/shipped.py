"""The recipes of the images that Encamp ships."""

from __future__ import annotations

from encamp.model.recipe import Kind, Recipe

MINI = Recipe(name="mini", kind=Kind.MINI, suite="bookworm", packages=("busybox-static",))
"""BusyBox and nothing else: the smallest machine that can run a command."""

DEBIAN12 = Recipe(
    name="debian12",
    kind=Kind.DEBIAN,
    suite="bookworm",
    packages=(
        "ca-certificates",
        "iproute2",
        "iputils-ping",
        "less",
        "netbase",
        "procps",
        "xz-utils",
    ),
)
"""Debian 12 as a job expects it, without documentation and translations."""

SHIPPED = {recipe.name: recipe for recipe in (MINI, DEBIAN12)}
