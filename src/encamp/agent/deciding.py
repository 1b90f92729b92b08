"""Deciding what a machine is to be: from a request to a plan, before anything is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec

from encamp import programs
from encamp.agent.phases import How, Phases
from encamp.agent.plan import (
    Plan,
    check_answer,
    check_shares,
    new_record,
    wanted_shares,
    with_facts,
)
from encamp.describe.environments import check_use
from encamp.describe.settings import load_settings
from encamp.home import Home
from encamp.images.store import ImageStore
from encamp.machines import accelerator, usermode
from encamp.machines.account import process_user
from encamp.machines.hardware import Hardware
from encamp.machines.processor import processor
from encamp.machines.storage import KEPT, choose
from encamp.machines.tap import Tap
from encamp.model.driver import (
    DRIVERS,
    DriverError,
    DriverName,
    Isolation,
    Wanted,
    check_driver,
)
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.job import MachineRequest
from encamp.model.machine import After, Machine, Share
from encamp.model.recipe import Kind, Recipe
from encamp.model.size import Size
from encamp.model.storage import Storage
from encamp.model.wanted import check_name, wanted_size
from encamp.progress import Note, Progress, Silent

T = TypeVar("T")


class Wish(msgspec.Struct, frozen=True):
    """A request that makes sense, as far as that can be told before its image is here."""

    request: MachineRequest
    environment: Environment
    user: tuple[int, int] | None
    size: Size
    shares: tuple[Share, ...]
    storage: Storage | None
    """None as long as it may turn out to be a whole disk, which has a way of its own."""
    after: After | None
    """What is to become of it after its job; None: it has none."""


def check_request(
    home: Home,
    request: MachineRequest,
    environment: Environment,
    *,
    after: After | None = None,
) -> Wish:
    """What is wrong with a request in itself is told before anything is built for it."""
    check_use(environment, request.owner)
    # A mistake there is told whether or not anything depends on the settings this time.
    load_settings()
    user = process_user(request.owner.uid)
    size = wanted_size(request, environment)
    if request.image is not None:
        environment = msgspec.structs.replace(environment, image=request.image)
    storage = None
    if isinstance(environment.image, Recipe):
        if environment.image.kind is Kind.DISK:
            _check_saving(environment, after)
        else:
            storage = _storage(request, environment, size, home)
    check_name(request.name)
    if (request.network or environment.network) == "bridge":
        from encamp.agent.linking import host_bridge

        host_bridge()
    _check_context(environment, resolved=False)
    shares = wanted_shares(request, environment)
    check_shares(shares)
    return Wish(request, environment, user, size, shares, storage, after)


def _storage(request: MachineRequest, environment: Environment, size: Size, home: Home) -> Storage:
    wanted = request.storage or environment.storage
    driver = request.driver or environment.driver
    if wanted is Storage.AUTO and size.disk and driver is DriverName.USERMODE:
        return Storage.SPARSE  # What QEMU makes of a disk is for QEMU alone.
    return choose(wanted, size, home)


async def find_image(
    images: ImageStore, environment: Environment, phases: Phases, how: How, progress: Progress
) -> Image:
    """The environment's image, built or fetched if it is not here yet."""
    wanted = environment.image
    if isinstance(wanted, str):
        found = images.resolve(wanted)
        if found is not None:
            return found
        how.word = "fetched"
        phases.on_image()
        return await _in_thread(images.fetch, wanted, progress)
    found = images.find(wanted.name, wanted.digest())
    if found is not None:
        return found
    how.word = "built"
    phases.on_image()
    return await _in_thread(images.ensure, wanted, progress)


async def decide(
    home: Home,
    images: ImageStore,
    wish: Wish,
    image: Image,
    progress: Progress,
    *,
    tied: bool,
    command: tuple[str, ...],
    tap: Tap | None = None,
) -> tuple[Plan, Machine]:
    """What the machine gets, now that its image is here; and its record, which nobody has yet."""
    request, environment = wish.request, wish.environment
    if image.disk is not None:
        from encamp.agent.whole import fit

        _check_saving(environment, wish.after)
        size, storage = fit(image.disk, wish.size, request, environment)
    else:
        check_answer(environment)
        size = wish.size
        storage = wish.storage or _storage(request, environment, size, home)
    wanted = Wanted(
        size,
        request.network or environment.network,
        storage,
        _isolation(request, environment),
        whole_disk=image.disk is not None,
        devices=bool(environment.devices or environment.qemu),
        suspended=wish.after is After.SUSPEND,
    )
    driver = await _driver(home, images, image, wish, wanted, progress)
    hardware = Hardware(
        driver,
        size,
        request.network or environment.network,
        len(image.layers),
        environment.devices,
        environment.qemu,
        KEPT[storage],
    )
    plan = Plan(request, environment, image, hardware, wish.user, wish.shares, storage)
    plan.tap = tap
    plan.isolation = DRIVERS[driver].isolation_for(wanted.isolation)
    machine = new_record(plan, tied=tied, command=command)
    plan.environment = with_facts(environment, machine, request.owner)
    _check_context(plan.environment, resolved=True)
    variables = {**image.defaults.variables, **plan.environment.context.variables}
    if hardware.network != "none" and image.disk is None:
        from encamp.agent.authorities import VARIABLES, host_bundle

        plan.bundle = host_bundle()
        if plan.bundle is not None:
            variables = {**VARIABLES, **variables}
    return plan, msgspec.structs.replace(machine, variables=variables)


def _isolation(request: MachineRequest, environment: Environment) -> Isolation:
    return request.isolation or environment.isolation


async def _driver(
    home: Home,
    images: ImageStore,
    image: Image,
    wish: Wish,
    wanted: Wanted,
    progress: Progress,
) -> DriverName:
    """What the machine is made of: what was asked for, if that can be had here, or QEMU."""
    asked = wish.request.driver or wish.environment.driver
    if asked is not None:
        check_driver(DRIVERS[asked], wanted)
    if asked is DriverName.USERMODE:
        await asyncio.to_thread(usermode.get_kernel, home, wanted.isolation, progress)
        return asked
    if asked is DriverName.EMULATION:
        return asked
    verdict = await usable_accelerator(home, images, image, wish.user, progress)
    if asked is not None and verdict.driver is not asked:
        raise DriverError(
            Code.CONFIGURATION,
            f"The driver '{asked.value}' does not work on this host: {verdict.reason}.",
            "'encamp accelerator' tells more. Leave --driver out to take what works.",
        )
    isolation = DRIVERS[verdict.driver].isolation
    if not isolation.satisfies(wanted.isolation):
        raise DriverError(
            Code.CONFIGURATION,
            f"Isolation '{wanted.isolation.value}' cannot be had on this host: {verdict.reason}.",
            f"This host's machines have isolation '{isolation.value}': ask for that if it is"
            " enough, or run the job where KVM works.",
        )
    return verdict.driver


async def usable_accelerator(
    home: Home, images: ImageStore, image: Image, user: tuple[int, int] | None, progress: Progress
) -> accelerator.Verdict:
    """What machines of this image run on; found out with a machine if nobody has yet."""
    verdict = accelerator.known(home, user)
    if verdict is None:
        tried = await _shipped(images, image, progress)
        verdict = await accelerator.decide(home, tried, user, progress)
    if verdict.lost:
        progress.update(Note(f"This machine is emulated, and slower: {verdict.reason}."))
    return verdict


async def _shipped(images: ImageStore, image: Image, progress: Progress) -> Image:
    """An image to try KVM with. One that somebody made, or a whole disk, may have reasons of its
    own not to answer, and the whole host would be taken for one without KVM."""
    from encamp.describe.shipped import MINI, SHIPPED

    for recipe in SHIPPED.values():
        found = images.find(recipe.name, recipe.digest())
        if found is not None and found.digest == image.digest:
            return image
    return await _in_thread(images.ensure, MINI, progress)


async def check_processor(
    home: Home, images: ImageStore, image: Image, user: tuple[int, int] | None, machine: Machine
) -> None:
    """Refuse to wake a suspended machine on another processor than it was suspended on: its guest
    would crash."""
    if machine.driver is not DriverName.KVM:
        return  # QEMU emulates the same processor everywhere.
    stays = "It stays suspended until then."
    verdict = await usable_accelerator(home, images, image, user, Silent())
    if verdict.driver is not DriverName.KVM:
        raise EncampError(
            Code.WRONG_STATE,
            f"Machine {machine.name} was suspended under KVM, and can only be restored under it:"
            f" {verdict.reason}.",
            f"Make KVM usable, then try again ('encamp accelerator --again'). {stays}",
        )
    if machine.processor != processor():
        raise EncampError(
            Code.WRONG_STATE,
            f"Machine {machine.name} was suspended on another processor, {machine.processor};"
            f" this host has {processor()}.",
            f"Restore it on a host with that processor. {stays}",
        )


def _check_context(environment: Environment, *, resolved: bool) -> None:
    if environment.context.files:
        from encamp.agent.context import check_context

        check_context(environment, resolved=resolved)


def _check_saving(environment: Environment, after: After | None) -> None:
    """Better said before a job's hours of work than after."""
    if after is After.SAVE:
        raise EncampError(
            Code.USAGE,
            f"Machines of environment '{environment.name}' are whole disks, and cannot be saved as"
            " images.",
            "Leave out --save-as and --after save; copy what you need out of it with --out.",
        )


async def _in_thread(get: Callable[[T, Progress], Image], wanted: T, progress: Progress) -> Image:
    try:
        return await asyncio.to_thread(get, wanted, progress)
    except asyncio.CancelledError:
        # The thread would go on: what it runs must be ended for it.
        programs.stop_all()
        raise
