"""A root tree out of a container's image."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

from encamp import programs
from encamp.images import foreign, oci, tree
from encamp.images.foreign import Budget, Reader, refuse
from encamp.images.oci_layout import Layout, wrong_digest
from encamp.images.portion import Portion
from encamp.images.tree import Entries
from encamp.model.errors import Code, EncampError
from encamp.workplace import Workplace

REGISTRY = "docker://"
REFERENCE = re.compile(r"docker://(?P<host>[^/\s]+)/[A-Za-z0-9][^\s]*")
WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"


def local_layout(source: str, work: Workplace, progress: Portion) -> Path:
    """Where the image is on this host; from a registry it is fetched first, by skopeo."""
    if not source.startswith(REGISTRY):
        return Path(source)
    reference = REFERENCE.fullmatch(source)
    if reference is None:
        raise EncampError(
            Code.CONFIGURATION,
            f"'{source}' names no image in a registry.",
            "Write docker://HOST[:PORT]/NAME[:TAG].",
        )
    target = work.directory / "layout"
    try:
        fetch(source, reference["host"], target, work, progress)
    except EncampError as error:
        raise refused(source, reference["host"], error) from error
    return target


def fetch(source: str, host: str, target: Path, work: Workplace, progress: Portion) -> None:
    what = f"fetching {source}"
    programs.run(
        [
            *("skopeo", "--override-os", "linux", "--override-arch", "amd64", "copy"),
            *(["--src-tls-verify=false"] if on_this_host(host) else []),
            *(source, f"oci:{target}:image"),
        ],
        purpose=what,
        hold=(work.lock,),
        on_line=progress.reader(what, lambda _: None),
    )


REFUSALS = (
    (
        r"unauthorized|authentication required|denied|forbidden",
        "does not give it to us",
        "Is its name right? If it is not for everybody: 'skopeo login {host}'.",
    ),
    (
        r"manifest unknown|name unknown|not found",
        "does not have it",
        "Check the name and the tag; 'skopeo list-tags' shows what there is.",
    ),
    (
        r"x509|certificate|HTTP response to HTTPS client",
        "has no certificate that this host trusts",
        "Add its certificate authority to the host: update-ca-certificates(8).",
    ),
    (
        r"no such host|connection refused|i/o timeout|no route|unreachable|name resolution",
        "cannot be reached",
        "Check the name of the registry, the network and the proxies of this host.",
    ),
)
"""What a registry, or skopeo, says; what that means; and what to do."""


def refused(source: str, host: str, error: EncampError) -> EncampError:
    """What became of an image in a registry, in place of skopeo's own words."""
    for words, meaning, hint in REFUSALS:
        if error.code is Code.BUILD_FAILED and re.search(words, error.detail, re.IGNORECASE):
            return EncampError(
                Code.BUILD_FAILED,
                f"The registry {host} {meaning}: {source}.",
                hint.format(host=host),
                transient=meaning == "cannot be reached",
            )
    return error


def on_this_host(host: str) -> bool:
    """Whether a registry is on this very host, where nobody can come in between."""
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name == "localhost"


def read_container(
    layout: Layout, container: oci.Container, source: str, place: Path, progress: Portion
) -> Entries:
    budget = Budget(source)
    whole: Entries = {}
    for number, layer in enumerate(container.layers):
        progress.update(f"unpacking {source}", number / len(container.layers))
        packed, archive = place / "layer", place / f"layer-{number}.tar"
        layout.copy(layer.name, layer.digest, packed)
        if foreign.expand(packed, archive, budget) != layer.expanded:
            raise wrong_digest(Path(source), layer.name)
        packed.unlink()
        reader = Reader(archive, budget, place / f"layer-{number}.spool", below=whole)
        apply(whole, reader.read(), source)
    if not whole:
        raise refuse(source, "it is empty")
    return foreign.fill_in(whole)


def apply(whole: Entries, layer: Entries, source: str) -> None:
    """Put a layer over what is there. What it takes away is always of the layers below it."""
    added: Entries = {}
    for path in sorted(layer):
        above, _, name = path.rpartition("/")
        if name == OPAQUE:
            there = whole.get(above)
            if there is not None and there.is_directory:
                tree.remove(whole, above, there)
                whole[above] = there
        elif name.startswith(WHITEOUT):
            gone = f"{above}/{name[len(WHITEOUT) :]}".lstrip("/")
            if gone in whole:
                tree.remove(whole, gone, whole[gone])
        else:
            added[path] = layer[path]
    for path in sorted(added):
        for above in tree.parents(path):
            lower = whole.get(above)
            if lower is not None and not lower.is_directory:
                raise refuse(
                    source, f"the entry '{path}' lies below '{above}', which is no directory"
                )
        entry, there = added[path], whole.get(path)
        if there is not None and not (there.is_directory and entry.is_directory):
            tree.remove(whole, path, there)
        whole[path] = entry
