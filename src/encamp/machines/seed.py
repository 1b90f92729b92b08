"""What a machine made from a disk is told at its first start: a volume that cloud-init reads.

The volume (cloud-init calls it a NoCloud seed) says who the machine is, and hands it its keys and
user data. It also brings Encamp's guest program, which is started once cloud-init has seen to all
that; the rest of the context comes through the guest program, as in every machine. The volume is
the machine's own, readable by nobody else on the host, and goes with it.
"""

from __future__ import annotations

import email
import email.policy
from email.message import EmailMessage
from pathlib import Path

import msgspec

from encamp.machines.iso9660 import volume
from encamp.model.environment import Context
from encamp.model.errors import Code, EncampError
from encamp.model.link import Link
from encamp.model.machine import Machine
from encamp.model.size import MIB, format_bytes

LABEL = "CIDATA"
MOST_USER_DATA = 8 * MIB

START_GUEST = """\
#!/bin/sh
# Starts Encamp's guest program, which the volume labelled CIDATA brings along.
set -eu
volume=/run/encamp/volume
home=/var/lib/encamp # programs in /run may not be run
[ -e /run/encamp/guest ] && exit
mkdir -p "$volume" "$home"
chmod 700 "$home"
mount -o ro,nosuid,nodev LABEL=CIDATA "$volume"
cp "$volume/encamp-guest" "$home/encamp-guest"
umount "$volume"
chmod 700 "$home/encamp-guest"
: >/run/encamp/guest
if [ -d /run/systemd/system ]; then
    exec systemd-run --quiet --unit=encamp-guest --description="Encamp's guest program" \\
        --property=Restart=always --property=TasksMax=infinity --property=KillMode=process \\
        -- "$home/encamp-guest" --service
fi
setsid "$home/encamp-guest" --service </dev/null >/dev/null 2>&1 &
"""
"""As a service of its own, so that what it runs lives as long as the machine, not as long as the
program that started it. Whoever comes second has nothing to do."""

LAST = "zz-encamp-guest"
"""cloud-init runs scripts in the order of their names, and those it makes itself among them."""

MULTIPART = ("content-type:", "mime-version:")


def seed(machine: Machine, context: Context, network: str, guest_program: Path) -> bytes:
    """The volume for one machine."""
    return volume(
        LABEL,
        {
            "meta-data": meta_data(machine),
            "user-data": user_data(context),
            "network-config": encode(network_config(network, machine.link)),
            "encamp-guest": guest_program.read_bytes(),
        },
    )


def meta_data(machine: Machine) -> bytes:
    return encode({"instance-id": machine.id, "local-hostname": machine.name})


def network_config(network: str, link: Link | None = None) -> dict[str, object]:
    """QEMU's user network tells its guest by DHCP what it needs to know; on a bridge nobody does,
    and the machine is as new to it as its disk."""
    if network == "none":
        return {"config": "disabled"}
    first: dict[str, object] = {"match": {"name": "e*"}, "dhcp4": link is None}
    if link is not None:
        first["addresses"] = [f"{link.address}/{link.prefix}"]
        first["macaddress"] = link.mac
        if link.gateway is not None:
            first["routes"] = [{"to": "0.0.0.0/0", "via": link.gateway}]
        if link.dns is not None:
            first["nameservers"] = {"addresses": [link.dns]}
    return {"version": 2, "ethernets": {"encamp": first}}


def user_data(context: Context) -> bytes:
    """Several parts, which cloud-init takes one after another: what Encamp has to say, what the
    environment says, which may override it, and the guest program's start at the end."""
    message = EmailMessage()
    message.make_mixed()
    if context.ssh_keys:
        keys = {"disable_root": False, "ssh_authorized_keys": list(context.ssh_keys)}
        attach(message, "encamp.cfg", "#cloud-config\n" + encode(keys).decode())
    try:
        if context.user_data is not None:
            attach_user_data(message, context.user_data)
        attach(message, LAST, START_GUEST)
        return message.as_bytes()
    except EncampError:
        raise
    except Exception as error:
        # Whatever Python's own parser does not expect in a header makes it fail in some way or
        # other; and only what the environment says can be like that.
        raise EncampError(
            Code.CONFIGURATION,
            f"The context's user_data is no sound message of several parts: {error}.",
            "Headers are written in ASCII, then comes an empty line, then what a part is about.",
        ) from error


def attach_user_data(message: EmailMessage, given: str) -> None:
    data = given.encode()
    if len(data) > MOST_USER_DATA:
        raise EncampError(
            Code.CONFIGURATION,
            f"The context's user_data has {format_bytes(len(data))}, and a disk can be handed"
            f" {format_bytes(MOST_USER_DATA)}.",
            "Hand over large files as 'files', or share a directory.",
        )
    if not given.lower().startswith(MULTIPART):
        attach(message, "user-data", given)
        return
    # It consists of parts itself: they take their place among ours.
    parsed = email.message_from_bytes(data, policy=email.policy.default)
    for part in parsed.walk():
        if not part.is_multipart():
            message.attach(part)


def attach(message: EmailMessage, name: str, text: str) -> None:
    """As plain text: cloud-init tells by its first line what it is. In base64, so that nothing in
    it can end the part, or begin another."""
    part = EmailMessage()
    part.set_content(text.encode(), "text", "plain", cte="base64", filename=name)
    part.set_param("charset", "utf-8")
    message.attach(part)


def encode(words: object) -> bytes:
    """JSON, which is YAML too."""
    return msgspec.json.encode(words) + b"\n"
