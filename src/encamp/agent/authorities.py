"""Certificate authorities of the host's own: machines that have a network trust them, too.

A site that looks into its connections, or has servers with certificates of its own, adds an
authority to each host. Programs in a machine reach the same servers through the same proxies.
"""

from __future__ import annotations

import os
import posixpath
import time
from pathlib import Path

from encamp.agent.context import unpack
from encamp.agent.copying import ROOT, outcome
from encamp.agent.surroundings import variables_for
from encamp.guest.archive_pack import pack_content
from encamp.guest.channel import Channel, Exec
from encamp.model.environment import Environment
from encamp.model.machine import Machine

OWN = Path("/usr/local/share/ca-certificates")
"""Where an administrator of Debian's puts authorities that Debian does not know."""
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
"""All that are trusted, in one file: of the host, and of the machine."""
HANDED = "/run/encamp/ca-certificates.crt"

VARIABLES = dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"), BUNDLE)
"""Python, Node and others do not look there by themselves."""

# Added, not replaced: an image may trust more than the host does.
ADD = 'mkdir -p "${2%/*}" && { echo; cat "$1"; } >>"$2"'


def host_bundle() -> Path | None:
    """The file with all that the host trusts, if somebody has added to that."""
    named = os.environ.get("SSL_CERT_FILE")
    found = named or (BUNDLE if any(OWN.rglob("*.crt")) else None)
    return Path(found) if found is not None and os.access(found, os.R_OK) else None


async def hand_over(
    channel: Channel, machine: Machine, environment: Environment, bundle: Path
) -> tuple[str, ...]:
    """Add what the host trusts to what the machine does. The files that are the machine's own from
    now on."""
    content = bundle.read_bytes()

    async def put(path: str) -> None:
        directory, name = posixpath.split(path)
        archive = iter((pack_content(name, content, mode=0o644, mtime_ns=time.time_ns()),))
        what = "the host's certificate authorities"
        await unpack(channel, environment, what, archive, directory, "0", "0")

    await put(HANDED)
    words: list[str | bytes] = ["/bin/sh", "-c", ADD, "add", HANDED, BUNDLE]
    stream = channel.execute(Exec(args=words, env=variables_for(ROOT, machine), cwd="/"))
    await stream.end()
    stream.stdout.discard()
    ended, _ = await outcome(stream)
    if not ended.started or ended.code != 0:
        # An image without a shell.
        await put(BUNDLE)
    return (BUNDLE,)
