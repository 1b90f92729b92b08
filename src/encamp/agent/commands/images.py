"""Commands about images: bring one here before it is needed, or remove it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from encamp.agent.commands.lines import Lines
from encamp.agent.commands.plugin import Context, command
from encamp.model.property import Value

if TYPE_CHECKING:
    from encamp.images.store import ImageStore

Image = Annotated[str, "a NAME, NAME:VERSION or digest"]


@command(timeout=3600)
def pull(
    context: Context,
    *,
    image: Image,
    force: Annotated[bool, "let a NAME:VERSION that is another image here move to it"] = False,
) -> dict[str, Value]:
    """Bring an image from the host's configured repositories to this host."""
    from encamp.images.pulling import pull_anywhere

    pulled = pull_anywhere(_store(context), image, Lines(context), force=force)
    return {"name": pulled.name, "digest": pulled.digest}


@command(timeout=120)
def remove(context: Context, *, image: Image) -> list[Value]:
    """Remove an image with all its names; one that is needed is not removed."""
    removed = _store(context).rm(image)
    return [{"name": one.name, "digest": one.digest} for one in removed]


def _store(context: Context) -> ImageStore:
    from encamp.agent.keeper import Keeper

    return Keeper.open(context.home).maker.images
