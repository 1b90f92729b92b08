"""What was read is read once; and what is kept of it is believed only if it is ours and right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from encamp.describe import compiled
from encamp.describe.environments import find_environment
from encamp.home import Home
from tests.describe.conftest import Host


class Thing(msgspec.Struct):
    name: str


MARK = compiled.stamp(Thing, "x")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A directory in which a thing is kept."""
    directory = tmp_path / "kept"
    compiled.keep(directory, b"thing", MARK, Thing("it"))
    return directory


def only(directory: Path) -> Path:
    (path,) = directory.iterdir()
    return path


def test_what_was_kept_is_there_again(kept: Path) -> None:
    assert compiled.fetch(kept, b"thing", MARK, Thing) == Thing("it")
    assert (kept.stat().st_mode & 0o777, only(kept).stat().st_mode & 0o777) == (0o700, 0o600)


def test_nothing_is_found_for_another_stamp_or_name(kept: Path) -> None:
    assert compiled.fetch(kept, b"thing", compiled.stamp(Thing, "y"), Thing) is None
    assert compiled.fetch(kept, b"other", MARK, Thing) is None


def test_names_that_meet_in_one_file_are_told_apart(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "_path", lambda directory, name: str(only(kept)))
    assert compiled.fetch(kept, b"other", compiled.stamp(Thing, "other"), Thing) is None


@pytest.mark.parametrize("size", [0, 1, 10, 20])
def test_damaged_file_is_not_believed(kept: Path, size: int) -> None:
    data = only(kept).read_bytes()
    only(kept).write_bytes(data[: len(data) - 1 - size])
    assert compiled.fetch(kept, b"thing", MARK, Thing) is None


def test_file_with_something_else_in_it_is_not_believed(kept: Path) -> None:
    other = msgspec.msgpack.encode((MARK, {"name": 5}))
    only(kept).write_bytes(other)
    assert compiled.fetch(kept, b"thing", MARK, Thing) is None


def test_file_that_others_can_write_is_not_believed(kept: Path) -> None:
    only(kept).chmod(0o622)
    assert compiled.fetch(kept, b"thing", MARK, Thing) is None


def test_link_is_not_followed(kept: Path, tmp_path: Path) -> None:
    path = only(kept)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert compiled.fetch(kept, b"thing", MARK, Thing) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_file_of_somebody_else_is_not_believed(kept: Path) -> None:
    os.chown(only(kept), 65534, 65534)
    assert compiled.fetch(kept, b"thing", MARK, Thing) is None


def test_few_are_kept(tmp_path: Path) -> None:
    for number in range(compiled.MOST_FILES + 20):
        compiled.keep(tmp_path / "kept", b"thing %d" % number, MARK, Thing("it"))
    assert len(list((tmp_path / "kept").iterdir())) == compiled.MOST_FILES


def test_where_nothing_can_be_kept_nothing_is(tmp_path: Path) -> None:
    compiled.keep(tmp_path / "missing" / "kept", b"thing", MARK, Thing("it"))
    assert not (tmp_path / "missing").exists()


def test_environment_is_read_again_when_any_file_changes(host: Host) -> None:
    path = host.write(host.here, "mine: {extends: mini, cpus: 2}")
    assert find_environment("mine").size.cpus == 2
    before = path.stat()
    host.write(host.here, "mine: {extends: mini, cpus: 3}")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert find_environment("mine").size.cpus == 3
    path.write_text("")
    with pytest.raises(Exception, match="no environment 'mine'"):
        find_environment("mine")


def test_file_that_changes_twice_within_one_step_of_its_times_is_read_again(host: Host) -> None:
    for cpus in range(1, 9):
        host.write(host.here, f"mine: {{extends: mini, cpus: {cpus}}}")
        assert find_environment("mine").size.cpus == cpus


def test_environment_of_another_directory_is_another_one(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.write(host.here, "mine: {extends: mini, cpus: 2}")
    other = tmp_path / "other"
    other.mkdir()
    host.write(other, "mine: {extends: mini, cpus: 3}")
    for _ in range(2):
        monkeypatch.chdir(host.here)
        assert find_environment("mine").size.cpus == 2
        monkeypatch.chdir(other)
        assert find_environment("mine").size.cpus == 3


def test_environments_are_found_without_a_home(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCAMP_HOME", str(tmp_path / "nowhere"))
    assert find_environment("mini").name == "mini"
    assert not (tmp_path / "nowhere").exists()


def test_job_does_not_wait_for_a_yaml_parser(host: Host) -> None:
    """The one thing all of this is for."""
    script = (
        "import sys; from encamp.describe.environments import find_environment;"
        " from encamp.describe.settings import load_settings;"
        " found = find_environment('mine'); load_settings();"
        " print(found.size.cpus, 'yaml' in sys.modules, 'difflib' in sys.modules)"
    )
    host.write(host.here, "mine: {extends: mini, cpus: 2}")
    host.write(host.user, "image_limit: 2G", "settings.yaml")

    def printed() -> str:
        return subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.strip()

    assert printed() == "2 True False"
    assert printed() == "2 False False"


def test_home_keeps_it_in_its_cache(host: Host) -> None:
    find_environment("mini")
    assert len(list((Home(host.home.root).cache / "environments").iterdir())) == 1
