"""Whom an agent serves, and where those keep their machines."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from encamp.agent import owners
from encamp.home import Home, user_name
from encamp.images import needs
from encamp.machines.account import ACCOUNT, process_user
from encamp.model.errors import Code, EncampError

NOBODY = 65534


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that other accounts can enter."""
    with tempfile.TemporaryDirectory(prefix="encamp-owners-") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's agent serves others")
def test_account_of_roots_machines_gets_none() -> None:
    made = process_user(0)
    assert made is not None
    with pytest.raises(EncampError, match="root's machines") as by_name:
        owners.account(ACCOUNT)
    with pytest.raises(EncampError, match="root's machines") as by_number:
        owners.by_number(made[0])
    assert {by_name.value.code, by_number.value.code} == {Code.NOT_PERMITTED}


SERVING = """
from encamp.agent import owners
print(owners.served())
print(owners.account(owners.served()[0]).pw_uid)
try:
    owners.account("root")
except Exception as error:
    print(error.code.name)
"""


def test_an_ordinary_accounts_agent_serves_that_account_alone() -> None:
    if os.geteuid() == 0:
        become = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    else:
        become = {}
    done = subprocess.run(
        [sys.executable, "-c", SERVING],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        **become,  # type: ignore[call-overload]
    )
    uid = NOBODY if become else os.geteuid()
    served, number, refused = done.stdout.splitlines()
    assert served == f"('{user_name(uid)}',)"
    assert (number, refused) == (str(uid), "NOT_PERMITTED")


def test_an_agents_own_user_works_in_its_own_home(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").prepare()
    assert owners.home_of(home, os.geteuid()) == home
    assert owners.prepare_home(home, pwd.getpwuid(os.geteuid())) == home
    assert owners.owners(home) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root works for others")
def test_a_home_is_its_owners_and_nobody_elses(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").prepare()
    nobody = pwd.getpwuid(NOBODY)
    own = owners.prepare_home(home, nobody)
    assert own.root == home.root / "owners" / str(NOBODY)
    found = own.root.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (NOBODY, nobody.pw_gid, 0o711)
    assert owners.prepare_home(home, nobody) == own
    assert owners.owners(home) == [NOBODY]
    # What another user left there is not passed on with the number.
    (own.root / "left").mkdir()
    os.chown(own.root, 1, 1)
    with pytest.raises(EncampError, match="belongs to somebody else") as refused:
        owners.prepare_home(home, nobody)
    assert refused.value.code is Code.NOT_PERMITTED
    (own.root / "left").rmdir()
    own.root.rmdir()
    own.root.symlink_to(tmp_path)
    with pytest.raises(EncampError):
        owners.prepare_home(home, nobody)
    assert tmp_path.stat().st_uid == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_whoever_has_become_an_owner_cannot_come_back(open_place: Path) -> None:
    script = f"""
import os, pwd
from pathlib import Path
from encamp.agent import owners
from encamp.home import Home
home = Home(Path({str(open_place / "home")!r})).prepare()
os.environ["KEY_OF_THE_AGENT"] = "secret"
own = owners.become(pwd.getpwuid({NOBODY}), home)
print(os.getresuid(), os.getresgid(), os.getgroups())
print(sorted(os.environ))
print(open("/proc/self/status").read().partition("CapEff:")[2].split()[0])
for change in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: (home.root / "x").touch()):
    try:
        change()
    except PermissionError:
        print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd="/"
    )
    who, variables, rights, *refused = done.stdout.splitlines()
    assert who.startswith(f"({NOBODY}, {NOBODY}, {NOBODY})")
    assert "0" not in who.replace("(", " ").replace(",", " ").split()
    assert "KEY_OF_THE_AGENT" not in variables
    assert int(rights, 16) == 0
    assert refused == ["refused"] * 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_owner_who_cannot_read_encamp_is_told_so(open_place: Path) -> None:
    closed = open_place / "closed"
    closed.mkdir(mode=0o700)
    (closed / "probe").touch()
    script = f"""
import pwd
from pathlib import Path
from encamp import own_files
from encamp.agent import owners
from encamp.home import Home
home = Home(Path({str(open_place / "home")!r})).prepare()
own_files.PROBE = Path({str(closed / "probe")!r})
owners.become(pwd.getpwuid({NOBODY}), home)
"""
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/")
    assert "where nobody cannot read it. Install it where" in done.stderr


IMAGE = "1" * 64


@pytest.fixture
def asleep(tmp_path: Path) -> Path:
    """The directory of an owner's machine that is suspended, as its record says."""
    machine = Home(tmp_path / "home").prepare().owners / "1234" / "machines" / ("0" * 32)
    machine.mkdir(parents=True)
    record = {"name": "asleep", "image": IMAGE, "state": "suspended"}
    (machine / "machine.json").write_bytes(msgspec.json.encode(record))
    return machine


def test_an_image_that_an_owners_machine_needs_is_not_removed(tmp_path: Path, asleep: Path) -> None:
    home = Home(tmp_path / "home")
    (asleep / "context").write_bytes(b"QEVM and so on")
    assert needs.elsewhere(home) == {IMAGE: [f"'asleep' in {home.owners}/1234"]}
    with pytest.raises(EncampError, match="is in use by 'asleep'"):
        needs.check_unneeded(home, "some-image", IMAGE)


def test_nobody_holds_on_to_an_image_by_writing_that_he_does(tmp_path: Path, asleep: Path) -> None:
    home = Home(tmp_path / "home")
    assert needs.elsewhere(home) == {}
    (asleep / "context").write_bytes(b"something else")
    assert needs.elsewhere(home) == {}
    (asleep / "context").rename(tmp_path / "saved")
    (tmp_path / "saved").write_bytes(b"QEVM")
    (asleep / "context").symlink_to(tmp_path / "saved")
    assert needs.elsewhere(home) == {}
    record = {"name": "awake", "image": IMAGE, "state": "running"}
    (asleep / "machine.json").write_bytes(msgspec.json.encode(record))
    assert needs.elsewhere(home) == {}
    layer = home.owners / "1234" / "images" / ("2" * 64)
    layer.mkdir(parents=True)
    file = {"name": "root.squashfs", "size": 3, "sha256": "3" * 64}
    written = {
        "digest": layer.name,
        "name": "over",
        "kernel_release": "",
        "created": 1.0,
        "recipe": "",
        "files": [file],
        "parent": IMAGE,
    }
    (layer / "image.json").write_bytes(msgspec.json.encode(written))
    assert needs.elsewhere(home) == {}
    (layer / "root.squashfs").write_bytes(b"all")
    assert needs.elsewhere(home) == {IMAGE: [f"an image in {home.owners}/1234/images"]}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_lies_in_a_home_and_is_not_its_owners_counts_for_nothing(
    tmp_path: Path, asleep: Path
) -> None:
    (asleep / "context").write_bytes(b"QEVM")
    os.chown(asleep / "machine.json", NOBODY, NOBODY)
    assert needs.elsewhere(Home(tmp_path / "home")) == {}
