"""The table of settings, and the files they are read from."""

from __future__ import annotations

from typing import Any

from encamp.describe.kinds import ListOf, Unusable
from encamp.describe.nodes import Mapping, Mistakes, Node, Scalar
from encamp.describe.reading import read_mapping
from encamp.describe.records import Attribute, Record
from encamp.describe.sources import Source
from encamp.describe.words import Bytes, HostPath, Truth, Word
from encamp.model.settings import Settings, Signatures

KEY = r"RW[A-Za-z0-9+/]{54}"


class _PublicKey(HostPath):
    """minisign's public key: what it prints, or the file it is in."""

    def make(self, node: Scalar) -> Any:
        import re

        return node.text if re.fullmatch(KEY, node.text) else super().make(node)


SETTINGS = Record(
    "settings",
    {
        "repositories": Attribute(
            ListOf(HostPath("a directory or a URL", schemes=("http://", "https://"))),
            "where images are looked for that the host does not have",
        ),
        "in_place": Attribute(
            Truth(), "are images in a repository's directory used where they lie?", "false"
        ),
        "image_limit": Attribute(Bytes("a size such as 20G"), "what images may take on this host"),
        "signatures": Attribute(
            Record(
                "'signatures'",
                {
                    "required": Attribute(
                        Truth(), "are images without a good signature refused?", "false"
                    ),
                    "keys": Attribute(
                        ListOf(_PublicKey("minisign's public key, or its file,")),
                        "whose signatures are good",
                    ),
                },
                Signatures,
            ),
            "whose images are believed",
        ),
        "volume_group": Attribute(
            Word("a volume group", pattern=r"[A-Za-z0-9+_.][A-Za-z0-9+_.-]*"),
            "LVM's volume group for storage 'lvm'",
            trusted=True,
        ),
        "thin_pool": Attribute(
            Word("a thin pool", pattern=r"[A-Za-z0-9+_.][A-Za-z0-9+_.-]*"),
            "the thin pool in it",
            trusted=True,
        ),
    },
    Settings,
)


def read_settings(files: list[tuple[Source, bytes]]) -> list[Settings]:
    """What each file sets; all mistakes of all files at once, if there are any."""
    mistakes = Mistakes()
    found = []
    for source, data in files:
        root = read_mapping(source, data, mistakes)
        if root is None:
            continue
        refuse_references(root, mistakes)
        settings = SETTINGS.read(root, mistakes)
        if not isinstance(settings, Unusable):
            found.append(settings)
    mistakes.raise_any()
    return found


def refuse_references(node: Node, mistakes: Mistakes) -> None:
    """References belong to descriptions of environments."""
    if not node.refers:
        return
    if isinstance(node, Scalar):
        mistakes.at(node, "there are no references in settings")
        return
    children = node.entries.values() if isinstance(node, Mapping) else node.items
    for child in children:
        refuse_references(child, mistakes)
