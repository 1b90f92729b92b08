"""What a machine is to be: a request, checked, and what was decided about it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from encamp.agent.session import USER_NETWORK
from encamp.machines.hardware import SHARES, Hardware
from encamp.machines.processor import kvm_release, processor
from encamp.machines.tap import Tap
from encamp.model.driver import DriverName, Isolation
from encamp.model.environment import Answer, Context, Environment
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.job import MachineRequest, User
from encamp.model.link import node_name
from encamp.model.machine import Machine, Share, State
from encamp.model.node import Node, NodeState
from encamp.model.storage import Storage


class Plan(msgspec.Struct):
    """What was decided about a machine before it is made."""

    request: MachineRequest
    environment: Environment
    image: Image
    hardware: Hardware
    user: tuple[int, int] | None
    shares: tuple[Share, ...] = ()
    storage: Storage = Storage.RAM
    tap: Tap | None = None
    """Its wire to a bridge, until its process has it."""
    isolation: Isolation = Isolation.KERNEL
    """What keeps its guest in."""
    bundle: Path | None = None
    """The authorities that the host trusts, if the machine is to trust them as well."""


def new_record(plan: Plan, *, tied: bool, command: tuple[str, ...]) -> Machine:
    machine_id = os.urandom(16).hex()
    now = time.time()
    name = plan.request.name or _name(plan, machine_id)
    under_kvm = plan.hardware.driver is DriverName.KVM
    return Machine(
        id=machine_id,
        name=name,
        owner=plan.request.owner.uid,
        host=os.uname().nodename,
        environment=plan.environment.name,
        image=plan.image.digest,
        size=plan.hardware.size,
        state=State.STARTING,
        reason="it is being made",
        created=now,
        changed=now,
        tied=tied,
        storage=plan.storage,
        network=plan.hardware.network,
        link=None if plan.tap is None else plan.tap.link,
        node=_node(plan, name, now),
        driver=plan.hardware.driver,
        isolation=plan.isolation,
        processor=processor() if under_kvm else "",
        kvm=kvm_release() if under_kvm else "",
        shares=plan.shares,
        devices=plan.hardware.devices,
        words=plan.hardware.words,
        command=command,
        workdir=plan.image.defaults.workdir,
        whole=plan.image.disk is not None,
    )


def _name(plan: Plan, machine_id: str) -> str:
    """A name for a machine that was given none. A worker node is called by its address: others
    must be able to find out where it is, and a site knows all addresses beforehand."""
    if plan.environment.enrol is not None and plan.tap is not None and plan.tap.link is not None:
        return node_name(plan.tap.link.address)
    return f"{plan.environment.name}-{machine_id[:6]}"


def _node(plan: Plan, name: str, now: float) -> Node | None:
    """Written down from the beginning: whoever finds it left on its way knows what it was for."""
    enrolment = plan.environment.enrol
    if not plan.request.enrol or enrolment is None:
        return None
    return Node(
        system=enrolment.system,
        name=name,
        state=NodeState.JOINING,
        since=now,
        idle=enrolment.idle,
        until=None if enrolment.lease is None else now + enrolment.lease,
    )


def address_of(machine: Machine) -> str:
    """What a machine is reached by, if its network gives it an address."""
    if machine.link is not None:
        return machine.link.address
    return USER_NETWORK.address if machine.network == "user" else ""


def with_facts(environment: Environment, machine: Machine, owner: User) -> Environment:
    """The environment, with what only its machine knows where its description refers to that."""
    if environment.context == Context() and not environment.ready.tested:
        return environment
    from encamp.describe.late import resolve_late

    facts = {
        "machine.id": machine.id,
        "machine.name": machine.name,
        "machine.environment": machine.environment,
        "machine.host": machine.host,
        "machine.address": address_of(machine),
        "owner.name": owner.name,
        "owner.uid": str(owner.uid),
        "owner.gid": str(owner.gid),
        "owner.group": owner.group,
        "owner.home": owner.home,
    }
    return msgspec.structs.replace(
        environment,
        context=resolve_late(environment.context, facts),
        ready=resolve_late(environment.ready, facts),
    )


def check_answer(environment: Environment) -> None:
    """An image of ours has nothing but the guest program to answer first."""
    answer = environment.ready.answer
    if answer is not Answer.GUEST:
        raise EncampError(
            Code.CONFIGURATION,
            f"Environment '{environment.name}' waits for '{answer.value}', which only a whole disk"
            " may have.",
            "Leave 'ready.answer' out; 'ready.port' waits for a server in the machine.",
        )


def wanted_shares(request: MachineRequest, environment: Environment) -> tuple[Share, ...]:
    """The environment's shares and the request's, which come first where both use one path."""
    taken = {share.path for share in request.shares}
    kept = tuple(share for share in environment.shares if share.path not in taken)
    return (*kept, *request.shares)


def check_shares(shares: tuple[Share, ...]) -> None:
    """Refuse more than a machine may have, and what is not a directory that is really there."""
    for share in shares:
        if not Path(share.source).is_dir():
            missing = "is not a directory" if Path(share.source).exists() else "does not exist"
            raise EncampError(
                Code.INPUT_MISSING,
                f"Cannot share {share.source}: it {missing}.",
                "--share takes a directory of this host, then ':' and where to show it.",
            )
        if not os.access(share.source, os.R_OK | os.X_OK):
            raise EncampError(
                Code.NOT_PERMITTED, f"Cannot share {share.source}: you may not read it."
            )
        if not share.path.startswith("/") or not share.path.strip("/"):
            raise EncampError(
                Code.USAGE,
                f"Cannot show {share.source} at '{share.path}' in the machine.",
                "Name an absolute path below '/', such as /data.",
            )
    paths = [share.path for share in shares]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise EncampError(
            Code.USAGE,
            f"Two shares cannot both be shown at {twice}.",
            "Give one of them another path: --share DIR:PATH.",
        )
    if len(shares) > SHARES:
        raise EncampError(
            Code.USAGE,
            f"A machine can have {SHARES} shares, not {len(shares)}.",
            "Share a directory that contains several of them.",
        )
