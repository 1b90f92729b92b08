"""The images that the agent's machines can be made of at once."""

from __future__ import annotations

from encamp.agent.properties.plugin import Asked, one_of
from encamp.model.property import Value


def images(asked: Asked) -> Value:
    """`names` of the images on the host, their `digests`, or their `count`."""
    from encamp.images.store import ImageStore

    # Records are read, not images: that they are sound is seen when they are used.
    found = ImageStore(asked.home).ls()
    digests = sorted({image.digest for image in found})
    names = sorted({image.name for image in found if image.name})
    value: Value = one_of(asked, {"names": names, "digests": digests, "count": len(digests)})
    return value
