"""What owners write down in their homes cannot be held against others, or against the host."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from encamp.agent import claims as claiming
from encamp.agent import owned, watching
from encamp.agent.claims import Claims, Use
from encamp.agent.commands import left, starting
from encamp.agent.commands.records import Records
from encamp.agent.fitting import fitting_machines
from encamp.agent.journal import LOCK, Journal
from encamp.agent.owners import home_of
from encamp.agent.promised import Promise, with_promises
from encamp.agent.watching import MachineWatch
from encamp.bus.messages import Claim, encode
from encamp.home import Home, user_name
from encamp.machines import room
from encamp.machines.standing import Standing
from encamp.meeting.kept import FETCHED
from encamp.model.errors import Code, EncampError
from encamp.model.machine import Machine, State
from encamp.model.size import MIB, Size
from encamp.workplace import remove_however_deep

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root works for others")

ANN, BEN = 65533, 65534
ID = "0" * 31


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="encamp-planted-") as name:
        Path(name).chmod(0o711)
        made = Home(Path(name) / "home").prepare()
        made.owners.mkdir(mode=0o711)
        made.root.chmod(0o711)
        yield made


def machine(id: str, **fields: object) -> Machine:
    whole = Machine(
        id=id,
        name="one",
        owner=0,
        host=os.uname().nodename,
        environment="mini",
        image="1" * 64,
        size=Size(1, 128 * MIB),
        state=State.STOPPED,
        reason="it was stopped",
        created=1.0,
        changed=1.0,
    )
    return msgspec.structs.replace(whole, **fields)


def plant(home: Home, uid: int, id: str, data: bytes) -> Path:
    """Something that an owner has written to a machine's record."""
    directory = home.owners / str(uid) / "machines" / id
    directory.mkdir(parents=True)
    (directory / "machine.json").write_bytes(data)
    for path in (*directory.parents[:2], directory, directory / "machine.json"):
        os.chown(path, uid, uid)
    return directory


@pytest.mark.parametrize(
    "lie",
    [
        {"size": Size(1, 1 << 70)},
        {"size": Size(1, -1)},
        {"size": Size(0, 128 * MIB)},
        {"size": Size(1, 128 * MIB, -1)},
        {"created": -1.0},
        {"changed": 1e300},
        {"name": "x" * 5000},
        {"environment": "\x1b]0;title\x07"},
        {"name": "two\nlines"},
        {"ssh": 1 << 40},
    ],
)
def test_a_record_that_makes_no_sense_is_none(home: Home, lie: dict[str, object]) -> None:
    good, bad = f"{ID}1", f"{ID}2"
    plant(home, ANN, good, msgspec.json.encode(machine(good, reason="\x1b[31m" + "y" * 9000)))
    plant(home, BEN, bad, b"")
    plain = msgspec.to_builtins(machine(bad)) | msgspec.to_builtins(lie)
    (home.owners / str(BEN) / "machines" / bad / "machine.json").write_bytes(
        msgspec.json.encode(plain)
    )
    ((uid, found),) = owned.records(home)
    assert (uid, found.id, found.owner) == (ANN, good, ANN)
    assert found.reason.isprintable()
    assert len(found.reason) <= owned.LONGEST_REASON
    assert encode(found)


def test_a_machine_is_its_owners_whatever_others_call_theirs(home: Home) -> None:
    id = f"{ID}1"
    plant(home, ANN, f"{ID}2", msgspec.json.encode(machine(f"{ID}2", name=id)))
    plant(home, ANN, id, msgspec.json.encode(machine(id, name="planted")))
    plant(home, BEN, id, msgspec.json.encode(machine(id, name="real")))
    assert owned.identified(home, id, BEN)[1].name == "real"
    assert owned.identified(home, id, ANN)[1].name == "planted"
    with pytest.raises(EncampError, match="Several users"):
        owned.identified(home, id, None)
    with pytest.raises(EncampError) as unknown:
        owned.identified(home, f"{ID}2", BEN)
    assert unknown.value.code is Code.UNKNOWN_MACHINE


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> list[Standing]:
    """Processes of machines."""
    made: list[Standing] = []
    monkeypatch.setattr(owned, "standing", lambda: made)
    return made


def test_nobody_says_that_a_machine_of_somebody_else_has_ended(
    home: Home, living: list[Standing]
) -> None:
    id, own = f"{ID}1", f"{ID}2"
    plant(home, ANN, id, msgspec.json.encode(machine(id, state=State.RUNNING)))
    plant(home, BEN, id, msgspec.json.encode(machine(id, state=State.FAILED)))
    plant(home, BEN, own, msgspec.json.encode(machine(own, state=State.FAILED)))
    Journal(home).directory(own).path.mkdir()
    Journal(home).write(machine(own, state=State.STOPPED))
    living.append(Standing(1, ANN, id, 1, 128 * MIB, 0, 0))
    watch = MachineWatch(home, lambda: None)
    watch.look(agree=False)
    seen = {(one.id, one.owner, one.state) for one in watch.machines}
    assert seen == {(id, ANN, State.RUNNING), (own, 0, State.STOPPED)}


def test_a_machine_is_no_larger_than_its_process_and_its_host(
    home: Home, living: list[Standing]
) -> None:
    huge = 1 << 50
    sizes = [Size(1, 128 * MIB), Size(1, huge), Size(5000, 128 * MIB), Size(1, huge)]
    for number, size in enumerate(sizes):
        id = f"{ID}{number}"
        record = machine(id, state=State.RUNNING, size=size)
        plant(home, ANN + number % 2, id, msgspec.json.encode(record))
        # The last one's process says the same as its record.
        memory = size.memory if number == 3 else 128 * MIB
        living.append(Standing(1, ANN + number % 2, id, size.cpus, memory, 0, 0))
    watch = MachineWatch(home, lambda: None)
    watch.look(agree=False)
    assert [one.id for one in watch.machines] == [f"{ID}0"]


def test_the_machines_of_one_leave_out_nobody_elses() -> None:
    many = [
        machine(f"{number:032x}", owner=ANN, state=State.RUNNING, changed=9.0)
        for number in range(1, 100)
    ]
    one = machine(f"{ID}0", owner=BEN, state=State.RUNNING, changed=1.0)
    room = 10 * len(encode(one))
    told = fitting_machines([*many, one], room)
    assert one in told
    assert 5 < len(told) < 15


def test_an_owner_who_holds_up_what_is_done_for_him_holds_up_nothing_else(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(home, ANN, f"{ID}1", b"")
    its = home_of(home, ANN)
    its.locks.mkdir()
    os.chown(its.locks, ANN, ANN)
    monkeypatch.setattr(watching, "PATIENCE", 0.1)
    monkeypatch.setattr(starting, "RECOVERING", 2.0)
    plant(home, BEN, f"{ID}2", msgspec.json.encode(machine(f"{ID}2")))
    watch = MachineWatch(home, lambda: None)
    before = set(threading.enumerate())
    with its.lock(LOCK):  # Whoever wants that waits for ever.
        for path in its.locks.iterdir():
            os.chown(path, ANN, ANN)
        watch.look(agree=True)
        assert [one.owner for one in watch.machines] == [BEN]
        helpers = set(threading.enumerate()) - before
        assert helpers
        watch.look(agree=True)
        for thread in helpers:
            thread.join()


def test_idle_machines_that_do_not_go_keep_no_others_in_place(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = Size(1, 64 << 30)
    idle = {"state": State.STOPPED, "idle": True, "size": large}
    stubborn = plant(home, ANN, f"{ID}1", msgspec.json.encode(machine(f"{ID}1", **idle)))
    os.chown(stubborn, 0, 0)
    os.chown(stubborn.parent, 0, 0)
    idle["changed"] = 2.0
    honest = plant(home, BEN, f"{ID}2", msgspec.json.encode(machine(f"{ID}2", **idle)))
    monkeypatch.setattr(room, "available_memory", lambda: 0)
    monkeypatch.setattr(claiming, "_check_environment", lambda name, user: None)
    claims = Claims(home, lambda id: Use.NONE, lambda id: "")
    claims.load()
    wanted = Claim(
        id="a.0.1",
        owner=user_name(0),
        environment="mini",
        size=Size(1, 128 * MIB),
        seconds=60.0,
    )
    with pytest.raises(EncampError, match="Not enough memory"):
        claims.promise(wanted)
    assert stubborn.is_dir()
    assert not honest.exists()


def test_what_one_keeps_does_not_make_go_what_others_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    records = Records(home)
    records.prepare()
    now = time.time()

    def keep(id: str, uid: int, age: float, size: int) -> Path:
        directory = home.root / "commands" / "kept" / id
        (directory / "kept").mkdir(parents=True)
        (directory / "kept" / "stdout").write_bytes(b"x" * size)
        os.chown(directory / "kept", uid, uid)
        os.utime(directory, (now - age, now - age))
        return directory

    small = keep("small", BEN, 500, 100)
    large = [keep(f"large{number}", ANN, 100 - number, 4 * MIB) for number in range(3)]
    total = shutil.disk_usage(tmp_path).total
    monkeypatch.setattr(left, "LARGEST_KEPT", 9 * MIB / total)
    records.forget(now)
    assert small.is_dir()
    assert [path.is_dir() for path in large] == [False, True, True]
    monkeypatch.setattr(left, "MOST_KEPT", 2)
    records.forget(now)
    assert small.is_dir()
    assert [path.is_dir() for path in large] == [False, False, True]
    records.forget(now + left.KEPT_FOR)
    assert not small.exists()


def test_what_was_fetched_goes_before_what_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path / "home")
    records = Records(home)
    records.prepare()
    now = time.time()

    def keep(id: str, uid: int, *, fetched: float | None) -> Path:
        kept = home.root / "commands" / "kept" / id / "kept"
        kept.mkdir(parents=True)
        if fetched is not None:
            (kept / FETCHED).touch()
            os.utime(kept / FETCHED, (now - fetched, now - fetched))
        os.chown(kept, uid, uid)
        return kept

    waiting = [keep(f"waiting{number}", ANN, fetched=None) for number in range(3)]
    early, late = keep("early", BEN, fetched=60.0), keep("late", BEN, fetched=30.0)
    records.forget(now)
    assert early.is_dir()
    monkeypatch.setattr(left, "MOST_KEPT", 4)
    records.forget(now)
    assert not early.exists()
    assert late.is_dir()
    assert all(path.is_dir() for path in waiting)
    records.forget(now + left.FETCHED_FOR)
    assert not late.exists()
    assert all(path.is_dir() for path in waiting)


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A directory whose owner has nested others in it, more than Python follows."""
    made = tmp_path / "home" / "commands" / "kept" / "deep" / "kept"
    made.mkdir(parents=True)
    os.chown(made, ANN, ANN)
    inside = made
    for _ in range(1100):
        inside /= "x"
        inside.mkdir()
    (inside / "large").write_bytes(b"x" * MIB)
    yield made
    # Or it would be in the way of whoever clears up after the tests.
    remove_however_deep(made)


def test_what_one_has_nested_deep_keeps_nothing_of_others_from_being_cleared(
    deep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(Home(tmp_path / "home"))
    records.prepare()
    old, other = (deep.parent.with_name(name) / "kept" for name in ("old", "other"))
    for path in (old, other):
        path.mkdir(parents=True)
        os.chown(path, BEN, BEN)
    os.utime(old.parent, (0, 0))
    found = left.Left(deep.parent)
    found.measure()
    assert found.size >= MIB
    monkeypatch.setattr(left, "LARGEST_KEPT", MIB / shutil.disk_usage(tmp_path).total)
    records.forget(time.time())
    assert [path.is_dir() for path in (deep, old, other)] == [False, False, True]


@pytest.mark.parametrize("state", [State.RUNNING, State.STOPPED])
def test_a_record_that_is_no_text_is_none(home: Home, state: State) -> None:
    good, bad = f"{ID}1", f"{ID}2"
    plant(home, ANN, good, msgspec.json.encode(machine(good)))
    data = msgspec.json.encode(machine(bad, name="NAME", state=state))
    plant(home, BEN, bad, data.replace(b"NAME", b"\xff"))
    watch = MachineWatch(home, lambda: None)
    watch.look(agree=False)
    assert [one.id for one in watch.machines] == [good]


def test_a_process_that_names_a_claim_nobody_can_read_is_counted_as_any_other() -> None:
    variables = {b"ENCAMP_COMMAND": b"\xff"}
    with subprocess.Popen(["/bin/cat"], env=variables, stdin=subprocess.PIPE) as process:
        one = Standing(process.pid, ANN, f"{ID}1", 1, 128 * MIB, 0, 0)
        promise = Promise(id="a", owner=BEN, size=Size(1, MIB), memory=MIB, until=0.0)
        counted = with_promises({"a": promise}, {})([one])
    assert counted.machines == 2
