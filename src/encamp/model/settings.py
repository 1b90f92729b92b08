"""What a site and a user have set: where images come from, how much they may take, whose are
trusted. Nearly every installation does without."""

from __future__ import annotations

import msgspec

from encamp.model.link import Bridge


class Signatures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whose images are believed."""

    required: bool = False
    """Is an image without a good signature refused?"""
    keys: tuple[str, ...] = ()
    """Public keys of minisign, as it prints them."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    repositories: tuple[str, ...] = ()
    """Where images are looked for that the host does not have: absolute paths and URLs."""
    redirects: tuple[str, ...] = ()
    """Other servers, HOST or HOST:PORT, that a repository's server may send us on to."""
    in_place: bool = False
    """Machines read the images of repositories that are directories where they are, without a
    copy on each host."""
    image_limit: int | None = None
    """Bytes that images may take on this host."""
    template_limit: int | None = None
    """Bytes that the templates of one account may take on this host."""
    signatures: Signatures = Signatures()
    volume_group: str | None = None
    """LVM's volume group for machines with storage `lvm`."""
    thin_pool: str | None = None
    """The thin pool in it."""
    bridge: Bridge | None = None
    """Where machines with `network: bridge` are."""
