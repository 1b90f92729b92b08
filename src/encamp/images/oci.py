"""Containers' images on disk: OCI layouts and `docker save` archives, old and new.

Everything an index names is checked against the digest it is named by before it is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from encamp.images.foreign import refuse
from encamp.images.oci_layout import Layout
from encamp.model.image import Defaults

PLATFORM = ("linux", "amd64")
DEEPEST_INDEX = 4


class Platform(msgspec.Struct):
    os: str = ""
    architecture: str = ""


class Descriptor(msgspec.Struct):
    digest: str
    size: int = -1
    media_type: str = msgspec.field(name="mediaType", default="")
    platform: Platform | None = None
    annotations: dict[str, str] | None = None


class Index(msgspec.Struct):
    """An index or a manifest: which of both shows by what it has."""

    manifests: tuple[Descriptor, ...] | None = None
    config: Descriptor | None = None
    layers: tuple[Descriptor, ...] = ()


class Commands(msgspec.Struct):
    user: str = msgspec.field(name="User", default="")
    variables: tuple[str, ...] | None = msgspec.field(name="Env", default=None)
    entrypoint: tuple[str, ...] | None = msgspec.field(name="Entrypoint", default=None)
    command: tuple[str, ...] | None = msgspec.field(name="Cmd", default=None)
    workdir: str = msgspec.field(name="WorkingDir", default="")


class RootLayers(msgspec.Struct):
    diff_ids: tuple[str, ...] = ()


class Configuration(msgspec.Struct):
    os: str = ""
    architecture: str = ""
    config: Commands | None = None
    rootfs: RootLayers = msgspec.field(default_factory=RootLayers)

    def defaults(self) -> Defaults:
        said = self.config or Commands()
        pairs = (variable.partition("=") for variable in said.variables or ())
        return Defaults(
            variables={name: value for name, mark, value in pairs if name and mark},
            workdir=said.workdir or None,
            command=(*(said.entrypoint or ()), *(said.command or ())),
            user=said.user or None,
        )


class Saved(msgspec.Struct):
    """One image of a `docker save` archive, as its manifest.json lists it."""

    configuration: str = msgspec.field(name="Config")
    layers: tuple[str, ...] = msgspec.field(name="Layers")
    tags: tuple[str, ...] | None = msgspec.field(name="RepoTags", default=None)


@dataclass(frozen=True)
class Layer:
    name: str
    """Where in the layout."""
    digest: str | None
    """Of its bytes as they are there."""
    expanded: str
    """Of its bytes uncompressed: what the configuration calls it."""


@dataclass(frozen=True)
class Container:
    """A container's image: its layers, the lowest first, and what it says about commands."""

    identity: str
    configuration: Configuration
    layers: tuple[Layer, ...]


def container(layout: Layout) -> Container:
    """The one image for our machines."""
    if layout.has("index.json"):
        return from_index(layout)
    if layout.has("manifest.json"):
        return from_saved(layout)
    raise refuse(
        str(layout.source),
        "it is neither an OCI layout (no index.json) nor what 'docker save' writes "
        "(no manifest.json)",
    )


def decoded(layout: Layout, name: str, data: bytes, kind: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise refuse(str(layout.source), f"'{name}' makes no sense: {error}") from error


def from_index(layout: Layout) -> Container:
    index = decoded(layout, "index.json", layout.text("index.json"), Index)
    descriptor: Descriptor | None = None
    for _ in range(DEEPEST_INDEX):
        if index.manifests is None:
            break
        descriptor = chosen(layout, index.manifests)
        name = blob(layout, descriptor.digest)
        index = decoded(layout, name, layout.text(name, sha256(layout, descriptor.digest)), Index)
    if descriptor is None or index.config is None or index.manifests is not None:
        raise refuse(str(layout.source), "its index leads to no image")
    name = blob(layout, index.config.digest)
    text = layout.text(name, sha256(layout, index.config.digest))
    names = [
        (blob(layout, layer.digest), sha256(layout, layer.digest))
        for layer in index.layers
        if "foreign" not in layer.media_type
    ]
    return assembled(layout, descriptor.digest, decoded(layout, name, text, Configuration), names)


def chosen(layout: Layout, manifests: tuple[Descriptor, ...]) -> Descriptor:
    """The manifest for our machines, out of an index."""
    fitting = [
        each
        for each in manifests
        if each.platform is None or (each.platform.os, each.platform.architecture) == PLATFORM
    ]
    # Beside images there may be statements about them.
    real = [
        each
        for each in fitting
        if (each.annotations or {}).get("vnd.docker.reference.type") != "attestation-manifest"
    ]
    digests = {each.digest for each in real}
    if len(digests) == 1:
        return real[0]
    if not real:
        raise refuse(str(layout.source), f"there is no image for {'/'.join(PLATFORM)} in it")
    key = "org.opencontainers.image.ref.name"
    names = sorted((each.annotations or {}).get(key, each.digest) for each in real)
    raise refuse(
        str(layout.source),
        f"there are several images in it: {', '.join(names)}",
        "Give a layout with one (for example made by 'skopeo copy').",
    )


def from_saved(layout: Layout) -> Container:
    data = layout.text("manifest.json")
    listed = decoded(layout, "manifest.json", data, tuple[Saved, ...])
    if len(listed) != 1:
        raise refuse(
            str(layout.source),
            f"there are {len(listed)} images in it",
            "Save one image only: docker save NAME:TAG.",
        )
    saved = listed[0]
    named = Path(saved.configuration).name.removesuffix(".json")
    digest = named if len(named) == 64 else None
    text = layout.text(saved.configuration, digest)
    configuration = decoded(layout, saved.configuration, text, Configuration)
    identity = f"sha256:{hashlib.sha256(text).hexdigest()}"
    return assembled(layout, identity, configuration, [(name, None) for name in saved.layers])


def assembled(
    layout: Layout,
    identity: str,
    configuration: Configuration,
    names: Sequence[tuple[str, str | None]],
) -> Container:
    platform = (configuration.os or PLATFORM[0], configuration.architecture or PLATFORM[1])
    if platform != PLATFORM:
        raise refuse(
            str(layout.source),
            f"it is for {'/'.join(platform)}, and machines are {'/'.join(PLATFORM)}",
        )
    expanded = configuration.rootfs.diff_ids
    if len(expanded) != len(names):
        raise refuse(
            str(layout.source),
            f"it has {len(names)} layers, and its configuration speaks of {len(expanded)}",
        )
    layers = tuple(
        Layer(name, digest, sha256(layout, whole))
        for (name, digest), whole in zip(names, expanded, strict=True)
    )
    return Container(identity, configuration, layers)


def sha256(layout: Layout, digest: str) -> str:
    method, _, value = digest.partition(":")
    if method != "sha256" or len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise refuse(str(layout.source), f"'{digest}' is no SHA-256 digest")
    return value


def blob(layout: Layout, digest: str) -> str:
    return f"blobs/sha256/{sha256(layout, digest)}"
