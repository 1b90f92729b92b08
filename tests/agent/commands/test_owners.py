"""Root's agent works for others: as them, in their own homes, whatever they have put there."""

from __future__ import annotations

import asyncio
import getpass
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from encamp.agent import owned
from encamp.agent.owners import home_of
from encamp.agent.watching import MachineWatch
from encamp.bus.messages import Claim
from encamp.describe.shipped import SHIPPED
from encamp.home import Home
from encamp.images.records import read_link
from encamp.images.store import ImageStore
from encamp.machines.standing import standing
from encamp.model.command import CommandState
from encamp.model.environment import Environment
from encamp.model.errors import EncampError
from encamp.model.machine import Share
from encamp.model.recipe import Kind, Recipe
from encamp.model.request import Request
from tests.agent.commands.listening import Asker
from tests.agent.commands.requesting import (
    begin,
    claim,
    execute,
    id_of,
    request,
    result_of,
    run,
)
from tests.conftest import Encamp, left_behind

pytestmark = [
    pytest.mark.site,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root works for others"),
]


@pytest.fixture(scope="module")
def camper() -> Iterator[pwd.struct_passwd]:
    """An account of this host."""
    name = f"camper-{secrets.token_hex(4)}"
    subprocess.run(["useradd", "--no-create-home", "--user-group", name], check=True)
    try:
        yield pwd.getpwnam(name)
    finally:
        subprocess.run(["userdel", name], check=True, capture_output=True)


@pytest.fixture(scope="module")
def shelter(site_home: Home) -> Iterator[None]:
    """What owners have is kept from test to test, for the sake of its templates."""
    yield
    shutil.rmtree(site_home.root / "owners", ignore_errors=True)


@pytest.fixture
def home(machine_home: Home, camper: pwd.struct_passwd, shelter: None) -> Iterator[Home]:
    """The suite's home of machines; what its owners have there is looked at afterwards."""
    yield machine_home
    own = home_of(machine_home, camper.pw_uid)
    if own.machines.is_dir():
        assert left_behind(own) == []


def assert_few_rights(pid: int, camper: pwd.struct_passwd) -> None:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert found["Uid"].split() == [str(camper.pw_uid)] * 4
    assert found["Gid"].split() == [str(camper.pw_gid)] * 4
    assert set(found["Groups"].split()) <= {str(camper.pw_gid)}
    assert {int(found[name], 16) for name in ("CapPrm", "CapEff", "CapInh")} == {0}


async def test_a_job_runs_as_its_owner_and_can_touch_nobody_elses(
    home: Home, asker: Asker, camper: pwd.struct_passwd
) -> None:
    wanted = request("sh", "-c", "id -un; id -u; echo $HOME", owner=camper.pw_name)
    async with asker.agent(home) as commands:
        result = await run(asker, commands, wanted)
        assert result.exit_code == 0, result
        kept = home.root / "commands" / "kept" / id_of(wanted) / "kept"
        who = [camper.pw_name, str(camper.pw_uid), camper.pw_dir]
        assert (kept / "stdout").read_text().split() == who
        assert kept.stat().st_uid == camper.pw_uid
    own = home_of(home, camper.pw_uid)
    strange = [path for path in own.root.rglob("*") if path.lstat().st_uid != camper.pw_uid]
    assert strange == []


async def test_a_machine_of_another_owner_is_seen_moved_and_removed(
    home: Home, asker: Asker, camper: pwd.struct_passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_OF_THE_AGENT", "secret")
    watch = MachineWatch(home, lambda: None)
    async with asker.agent(home) as commands:
        result = await run(asker, commands, request(owner=camper.pw_name))
        assert result.standing, result
        watch.look(agree=True)
        (seen,) = watch.machines
        assert (seen.id, seen.owner) == (result.machine, camper.pw_uid)
        process = next(one for one in standing() if one.name == result.machine)
        assert Path(f"/proc/{process.pid}").stat().st_uid == camper.pw_uid
        assert_few_rights(process.pid, camper)
        variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
        assert b"LANG=C.UTF-8" in variables
        assert not [word for word in variables if b"AGENT" in word or b"/root" in word]
        others = await asker.run(
            commands, "machine.pause", machine=result.machine, owner=getpass.getuser()
        )
        assert others.state is CommandState.FAILED
        assert "There is no machine" in others.reason
        paused = await asker.run(
            commands, "machine.pause", machine=result.machine, owner=camper.pw_name
        )
        assert paused.state is CommandState.DONE, paused.reason
        watch.look(agree=True)
        assert [machine.state.value for machine in watch.machines] == ["paused"]
        # Its process is killed: its owner's record is put right, by a process of the owner's.
        os.kill(process.pid, signal.SIGKILL)
        while [machine.state.value for machine in watch.machines] != ["failed"]:
            watch.look(agree=True)
        removed = await asker.run(commands, "machine.remove", machine=result.machine)
        assert removed.state is CommandState.DONE, removed.reason
        watch.look(agree=False)
        assert watch.machines == ()


async def test_nothing_is_left_of_a_job_whose_carrier_is_killed(
    home: Home, asker: Asker, camper: pwd.struct_passwd
) -> None:
    wanted = request("sh", "-c", "echo up; sleep 3600", owner=camper.pw_name)
    async with asker.agent(home) as commands:
        id = await begin(commands, wanted)
        out = home.root / "commands" / "under-way" / id / "kept" / "stdout"
        while not (out.exists() and out.stat().st_size):
            await asyncio.sleep(0.02)
        child = commands.process_of(id)
        assert child is not None
        os.kill(child, signal.SIGKILL)
        lost = await asker.until_over(commands, id)
        assert lost.state is CommandState.LOST
        assert lost.last is not None
        assert lost.last.phase == "running"
        own = home_of(home, camper.pw_uid)
        while left_behind(own):
            await asyncio.sleep(0.02)


async def test_what_an_owner_plants_is_neither_followed_nor_believed(
    home: Home, asker: Asker, camper: pwd.struct_passwd, tmp_path: Path
) -> None:
    own = home_of(home, camper.pw_uid)
    own.machines.mkdir(parents=True, exist_ok=True)
    async with asker.agent(home) as commands:
        standing_one = await run(asker, commands, request())
        watch = MachineWatch(home, lambda: None)
        watch.look(agree=False)
        (real,) = watch.machines
        wrong = {
            "another's id": msgspec.json.encode(real),
            "far too long": b'{"id": "' + b"x" * (1 << 20) + b'"}',
            "no record": b"\0",
        }
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "machine.json").write_bytes(msgspec.json.encode(real))
        try:
            for number, data in enumerate(wrong.values()):
                directory = own.machines / f"{number:032x}"
                directory.mkdir()
                (directory / "machine.json").write_bytes(data)
            (own.machines / real.id).symlink_to(home.machines / real.id)
            (own.machines / f"{10:032x}").symlink_to(outside)
            directory = own.machines / f"{11:032x}"
            directory.mkdir()
            (directory / "machine.json").symlink_to(home.machines / real.id / "machine.json")
            directory = own.machines / f"{12:032x}"
            directory.mkdir()
            os.mkfifo(directory / "machine.json")
            directory = own.machines / f"{13:032x}"
            directory.mkdir()
            lie = msgspec.structs.replace(real, id=directory.name, owner=0)
            (directory / "machine.json").write_bytes(msgspec.json.encode(lie))
            watch.look(agree=False)
            assert watch.machines == (real,)
            assert [machine.owner for _, machine in owned.records(home)] == [camper.pw_uid]
        finally:
            for path in own.machines.iterdir():
                if path.is_symlink():
                    path.unlink()
                else:
                    shutil.rmtree(path)
        removed = await asker.run(
            commands, "machine.remove", machine=standing_one.machine, force=True
        )
        assert removed.state is CommandState.DONE, removed.reason


async def test_users_without_an_account_are_refused(home: Home, asker: Asker) -> None:
    async with asker.agent(home) as commands:
        wanted = request("true", owner="nobody-of-that-name")
        claim = Claim(
            id="a.0.1", owner=wanted.owner, environment="mini", size=wanted.size, seconds=10
        )
        with pytest.raises(EncampError, match="has no account on this host"):
            await commands.claim(claim)


def at_work(place: Path) -> bool:
    """Is there a process that was told to work there?"""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if str(place).encode() in path.read_bytes():
                return True
    return False


def removed(directory: Path) -> bool:
    """Did nobody write to it meanwhile?"""
    with suppress(OSError):
        shutil.rmtree(directory)
    return not directory.exists()


def describing(wanted: Request, **more: Any) -> Request:
    """A request for an environment that its owner describes."""
    mini = SHIPPED["mini"]
    image = Recipe(kind=Kind.LAYER, name="mine", parent=mini, run=("id -u > /made-by",))
    own = Environment(name="mine", image=image, size=wanted.size, **more)
    return msgspec.structs.replace(wanted, environment="mine", described=own, own=True)


async def test_what_an_owner_describes_is_made_with_that_owners_rights(
    home: Home, asker: Asker, camper: pwd.struct_passwd
) -> None:
    wanted = request("cat", "/made-by", owner=camper.pw_name)
    described = describing(wanted)
    async with asker.agent(home) as commands:
        result = await run(asker, commands, described)
        assert (result.exit_code, result.failure) == (0, "")
        assert read_link(home, "mine") is None
        own = home_of(home, camper.pw_uid)
        made = read_link(own, "mine")
        assert made is not None
        assert (own.images / made.digest).stat().st_uid == camper.pw_uid
        # What it cannot read it cannot show, and no other host is asked to.
        secret = Share(source="/root", path="/root")
        result = await run(asker, commands, describing(again(wanted), shares=(secret,)))
        assert (result.final, result.environment) == (True, False)
        assert "you may not read it" in result.failure
        result = await run(asker, commands, describing(again(wanted), qemu=("-S",)))
        assert (result.final, result.environment) == (True, False)
        assert "only an administrator" in result.failure


def again(wanted: Request) -> Request:
    return msgspec.structs.replace(wanted, id=request().id)


async def test_what_this_host_describes_cannot_be_brought_along(
    home: Home, asker: Asker, camper: pwd.struct_passwd
) -> None:
    wanted = describing(request("true", owner=camper.pw_name))
    async with asker.agent(home) as commands:
        with pytest.raises(EncampError, match="describes an environment 'mini' of its own"):
            await commands.claim(claim(msgspec.structs.replace(wanted, environment="mini")))


async def test_an_environment_that_is_nowhere_described_is_not_tried_again(
    home: Home, asker: Asker, camper: pwd.struct_passwd
) -> None:
    wanted = describing(request("true", owner=camper.pw_name))
    async with asker.agent(home) as commands:
        await commands.claim(claim(wanted))
        # A host of an older version may have promised what it does not know.
        unknown = msgspec.structs.replace(wanted, described=None, own=False)
        await commands.execute(execute(unknown))
        result = result_of(await asker.until_over(commands, id_of(wanted)))
        assert (result.final, result.failure) == (True, "There is no environment 'mine'.")


async def test_an_image_that_is_missing_is_got_for_all_owners(
    home: Home,
    asker: Asker,
    encamp: Encamp,
    camper: pwd.struct_passwd,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory(prefix="encamp-owners-") as name:
        place = Path(name)
        place.chmod(0o711)
        (place / "repository").mkdir()
        encamp("image", "push", "mini", place / "repository")
        (place / "settings.yaml").write_text(f"repositories: [{place}/repository]\n")
        monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(place))
        monkeypatch.setenv("ENCAMP_HOME", str(place / "home"))
        other = Home(place / "home")
        wanted = request("true", owner=camper.pw_name)
        async with asker.agent(other) as commands:
            id = await begin(commands, wanted)
            await asker.listen(
                commands, lambda: id in asker.heard and asker.heard[id].phase == "image"
            )
            own = home_of(other, camper.pw_uid)
            # Its machine is on its way: that would take longer than is of interest here.
            while not (own.images / "stamps").is_dir():
                await asyncio.sleep(0.02)
            await commands.cancel(id)
            assert (await asker.until_over(commands, id)).state is CommandState.CANCELLED
            while left_behind(own):
                await asyncio.sleep(0.02)
        named = ImageStore(other, shared=None).find("mini", SHIPPED["mini"].digest())
        assert named is not None
        assert named.directory.stat().st_uid == 0
        assert [path.name for path in own.images.iterdir()] == ["stamps"]
        # What clears up after the command goes on without the agent, for a moment.
        while at_work(place) or not removed(other.root):
            await asyncio.sleep(0.02)
