"""What a machine gets is decided by what its image turns out to be, and what cannot be is refused
before anything is made."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import msgspec
import pytest

from encamp.agent.deciding import check_request, decide
from encamp.agent.keeper import Keeper
from encamp.cli.options import caller
from encamp.describe.shipped import MINI
from encamp.home import Home
from encamp.images.store import ImageStore
from encamp.machines import accelerator
from encamp.model.driver import DriverName
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.image import Image
from encamp.model.job import MachineRequest
from encamp.model.machine import After, Machine, State
from encamp.model.recipe import Kind, Recipe
from encamp.model.size import MIB, Size
from encamp.model.storage import Storage
from encamp.progress import Progress, Silent

SIZE = 8 * MIB
VERDICT = accelerator.Verdict(DriverName.EMULATION, "", "", 0.0)


class StoppedError(Exception):
    """As far as the test wants to go."""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").prepare()


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """A small disk with one partition and something to begin with."""
    partition = struct.pack("<B3sB3sII", 0x80, b"", 0x83, b"", 2048, SIZE // 512 - 2048)
    source = tmp_path / "disk.raw"
    source.write_bytes(b"\xeb\xfe".ljust(446, b"\x90") + partition + bytes(48) + b"\x55\xaa")
    os.truncate(source, SIZE)
    return Recipe(name="cloud", kind=Kind.DISK, source=str(source))


@pytest.fixture
def image(home: Home, recipe: Recipe) -> Image:
    return ImageStore(home, shared=None).ensure(recipe)


@pytest.fixture
def tcg(monkeypatch: pytest.MonkeyPatch) -> None:
    """What machines run on here is known already."""
    monkeypatch.setattr(accelerator, "known", lambda home, user: VERDICT)


def environment(image: Recipe | str) -> Environment:
    return Environment(name="cloud", image=image, size=Size(1, 256 * MIB))


@pytest.mark.parametrize("named", [True, False])
async def test_whole_disk_may_be_asked_for_with_the_storage_it_has(
    home: Home, recipe: Recipe, image: Image, tcg: None, named: bool
) -> None:
    request = MachineRequest(environment="cloud", owner=caller(), storage=Storage.QCOW2)
    wanted = environment("cloud" if named else recipe)
    wish = check_request(home, request, wanted)
    images = ImageStore(home, shared=None)
    plan, machine = await decide(home, images, wish, image, Silent(), tied=True, command=())
    assert plan.storage is machine.storage is Storage.QCOW2
    assert plan.hardware.size.disk == SIZE


async def test_storage_of_a_named_image_is_refused_once_it_is_known_to_be_no_disk(
    home: Home, image: Image, tcg: None
) -> None:
    request = MachineRequest(environment="cloud", owner=caller(), storage=Storage.QCOW2)
    wish = check_request(home, request, environment("cloud"))
    tree = msgspec.structs.replace(image, files=())
    images = ImageStore(home, shared=None)
    with pytest.raises(EncampError, match="needs a size") as refused:
        await decide(home, images, wish, tree, Silent(), tied=True, command=())
    assert refused.value.code is Code.USAGE


async def test_whole_disk_that_is_to_be_saved_is_refused_before_it_is_made(
    home: Home, recipe: Recipe, image: Image, tcg: None
) -> None:
    request = MachineRequest(environment="cloud", owner=caller())
    with pytest.raises(EncampError, match="cannot be saved") as refused:
        check_request(home, request, environment(recipe), after=After.SAVE)
    assert refused.value.code is Code.USAGE
    # What a name stands for is only known when the image is here.
    wish = check_request(home, request, environment("cloud"), after=After.SAVE)
    images = ImageStore(home, shared=None)
    with pytest.raises(EncampError, match="cannot be saved"):
        await decide(home, images, wish, image, Silent(), tied=True, command=())
    assert list(home.machines.iterdir()) == []


async def test_whole_disk_wakes_up_also_where_it_must_be_found_out_what_it_runs_on(
    home: Home, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a machine that has a kernel to be tried with; the disk's own is inside it."""
    tried: list[Image] = []
    mini = msgspec.structs.replace(image, name="mini", files=())

    def ensure(images: ImageStore, wanted: Recipe, progress: Progress) -> Image:
        assert wanted is MINI
        return mini

    async def stop(home: Home, image: Image, user: object, progress: Progress) -> None:
        tried.append(image)
        raise StoppedError

    monkeypatch.setattr(ImageStore, "ensure", ensure)
    monkeypatch.setattr(accelerator, "known", lambda home, user: None)
    monkeypatch.setattr(accelerator, "decide", stop)
    keeper = Keeper.open(home)
    now = time.time()
    machine = Machine(
        id="0" * 32,
        name="a",
        owner=os.geteuid(),
        host=os.uname().nodename,
        environment="cloud",
        image=image.digest,
        size=environment("cloud").size,
        state=State.SUSPENDED,
        reason="",
        created=now,
        changed=now,
        storage=Storage.QCOW2,
        whole=True,
        driver=DriverName.KVM,
    )
    keeper.journal.add(machine, named=True).release()
    with pytest.raises(StoppedError):
        await keeper.restore(machine)
    assert tried == [mini]
