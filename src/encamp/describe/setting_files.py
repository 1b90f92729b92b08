"""The table of settings, and the files they are read from."""

from __future__ import annotations

from typing import Any

from encamp.describe.kinds import WRONG, ListOf, MapOf, Schema, Unusable
from encamp.describe.nodes import Mapping, Mistakes, Node, Scalar
from encamp.describe.reading import read_mapping
from encamp.describe.records import Attribute, Record
from encamp.describe.sources import Source
from encamp.describe.words import Bytes, HostPath, Truth, Word
from encamp.model.link import Bridge
from encamp.model.settings import Settings, Signatures

KEY = r"RW[A-Za-z0-9+/]{54}"


class _PublicKey(HostPath):
    """minisign's public key: what it prints, or the file it is in."""

    def make(self, node: Scalar) -> Any:
        import re

        return node.text if re.fullmatch(KEY, node.text) else super().make(node)


INTERFACE = r"[A-Za-z0-9_.-]{1,15}"
ADDRESS = r"\d{1,3}(\.\d{1,3}){3}"
HOST = r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?"


class _Bridge:
    """A bridge, whose addresses must fit together."""

    record = Record(
        "'bridge'",
        {
            "name": Attribute(Word("a network interface", pattern=INTERFACE), "the bridge itself"),
            "addresses": Attribute(
                Word(
                    "a range such as 10.99.0.100-10.99.0.199/24",
                    pattern=rf"{ADDRESS}(-{ADDRESS})?/\d{{1,2}}",
                ),
                "what this host gives to its machines; another host's range is another one",
            ),
            "gateway": Attribute(
                Word("an address", pattern=ADDRESS), "what leads on from there, if something does"
            ),
            "dns": Attribute(Word("an address", pattern=ADDRESS), "who knows names there"),
            "hosts": Attribute(
                MapOf("hosts", HOST, Word("an address", pattern=ADDRESS)),
                "names that machines know by themselves, and their addresses",
            ),
        },
        Bridge,
        required=("name", "addresses"),
    )
    words = record.words

    def read(self, node: Node, mistakes: Mistakes) -> Any:
        bridge = self.record.read(node, mistakes)
        if isinstance(bridge, Bridge) and (said := bridge.mistake()):
            mistakes.at(node, said)
            return WRONG
        return bridge

    def schema(self) -> Schema:
        return self.record.schema()


SETTINGS = Record(
    "settings",
    {
        "repositories": Attribute(
            ListOf(HostPath("a directory or a URL", schemes=("http://", "https://"))),
            "where images are looked for that the host does not have",
        ),
        "redirects": Attribute(
            ListOf(
                Word(
                    "a host such as files.example.org or node2:8080",
                    pattern=r"[a-z0-9.-]+(:[1-9][0-9]{0,4})?",
                )
            ),
            "other servers that a repository's server may redirect to",
        ),
        "in_place": Attribute(
            Truth(), "are images in a repository's directory used where they lie?", "false"
        ),
        "image_limit": Attribute(Bytes("a size such as 20G"), "what images may take on this host"),
        "template_limit": Attribute(
            Bytes("a size such as 20G"), "what the templates of one account may take", "2G"
        ),
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
        "bridge": Attribute(_Bridge(), "where machines with network 'bridge' are", trusted=True),
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
