"""Which files are read, in which order, whose are believed, and what mistakes in them break."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from encamp.describe import places
from encamp.describe.definition_files import definition_places
from encamp.describe.environments import (
    all_environments,
    check_use,
    find_environment,
    may_use,
    open_library,
)
from encamp.home import user_directory
from encamp.model.environment import Environment
from encamp.model.errors import Code, EncampError
from encamp.model.job import User
from encamp.model.size import Size
from tests.describe.conftest import Host, root_only

NOBODY = 65534


def refused(name: str) -> EncampError:
    with pytest.raises(EncampError) as caught:
        find_environment(name)
    return caught.value


@root_only
def test_files_add_to_one_another_in_order(host: Host) -> None:
    host.write(host.site, "ours: {extends: debian12, cpus: 2}")
    host.write(host.user, "mine: {extends: ours, memory: 1G}")
    host.write(host.here, "this: {extends: mine, disk: 1G}")
    found = all_environments()
    assert list(found)[-3:] == ["ours", "mine", "this"]
    assert str(found["this"].size) == "2 cpu, 1 GiB, 1 GiB disk"
    assert found["this"].image == found["debian12"].image
    assert found["mine"].origin == str(host.user / "environments.yaml")


def test_shipped_environments_are_there_without_any_file(host: Host) -> None:
    shipped = ["mini", "debian12", "debian11", "debian13", "scientific"]
    assert list(all_environments()) == [*shipped, "slurm-node", "gridengine-node"]


def test_file_that_is_at_two_places_is_read_once(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.write(host.user, "mine: {extends: mini}")
    monkeypatch.chdir(host.user)
    assert "mine" in all_environments()


def test_environments_are_found_from_a_directory_that_was_removed(host: Host) -> None:
    gone = host.here / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    assert find_environment("mini").name == "mini"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_file_of_somebody_else_is_not_read_and_breaks_nothing(host: Host) -> None:
    path = host.write(host.here, "trap: {extends: mini}\nmini: {image: evil}\nx: [")
    os.chown(path, NOBODY, NOBODY)
    assert find_environment("mini").image != "evil"
    error = refused("trap")
    assert error.code is Code.UNKNOWN_ENVIRONMENT
    assert (
        f"Not read: {path} belongs to nobody; only files of you or root are read." in error.detail
    )


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_file_that_others_can_write_is_not_read(host: Host, mode: int) -> None:
    path = host.write(host.user, "mine: {extends: mini}")
    path.chmod(mode)
    assert "chmod go-w" in refused("mine").detail
    path.chmod(0o644)
    assert find_environment("mine").name == "mine"


def test_what_is_no_file_is_not_waited_for(host: Host) -> None:
    os.mkfifo(host.here / "environments.yaml", 0o600)
    assert find_environment("mini").name == "mini"
    assert "is not a file" in refused("mine").detail


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_link_of_somebody_else_is_not_followed(host: Host) -> None:
    target = host.write(host.user, "mine: {extends: mini}", "kept.yaml")
    link = host.here / "environments.yaml"
    link.symlink_to(target)
    assert find_environment("mine").name == "mine"
    os.lchown(link, NOBODY, NOBODY)
    assert "belongs to nobody" in refused("mine").detail


def test_directories_and_names_that_are_no_text_are_coped_with(host: Host) -> None:
    odd = os.fsencode(host.here) + b"/\xff"
    Path(os.fsdecode(odd)).mkdir()
    os.chdir(odd)
    host.write(Path(os.fsdecode(odd)), "mine: {extends: mini, shares: [data:/data]}")
    for _ in range(2):
        found = find_environment("mine")
        assert found.shares[0].source == os.fsdecode(odd + b"/data")
        assert found.origin.endswith("/\\xff/environments.yaml")
    assert refused(os.fsdecode(b"\xff")).code is Code.UNKNOWN_ENVIRONMENT
    assert refused("größe").code is Code.UNKNOWN_ENVIRONMENT


@root_only
def test_file_of_the_site_belongs_to_root(host: Host) -> None:
    path = host.write(host.site, "ours: {extends: mini}")
    os.chown(path, NOBODY, NOBODY)
    assert "only files of root are read" in refused("ours").detail


def test_only_root_chooses_the_sites_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", "/elsewhere")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert places.site_directory() == "/etc/encamp"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert places.site_directory() == "/elsewhere"


def test_users_directory_follows_the_usual_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ENCAMP_USER_CONFIG", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/eve")
    assert user_directory() == "/home/eve/.config/encamp"
    monkeypatch.setenv("XDG_CONFIG_HOME", "/config")
    assert user_directory() == "/config/encamp"
    monkeypatch.setenv("ENCAMP_USER_CONFIG", "/chosen")
    assert user_directory() == "/chosen"


# ── mistakes ─────────────────────────────────────────────────────────────────────────────────────


def test_mistakes_elsewhere_do_not_stop_what_does_not_build_on_them(host: Host) -> None:
    host.write(host.user, "mine: {extends: mini}")
    host.write(host.here, "broken: [")
    assert find_environment("mini").name == "mini"
    assert find_environment("mine").name == "mine"
    error = refused("broken")
    assert error.code is Code.CONFIGURATION
    assert error.sentence == f"There is a mistake in {host.here}/environments.yaml."
    assert "environments.yaml:2:1: this is not YAML" in error.detail


def test_file_that_makes_no_sense_is_blamed_for_what_may_be_missing_in_it(host: Host) -> None:
    broken = host.write(host.user, "base: [")
    host.write(host.here, "mine: {extends: base}")
    assert refused("mine").sentence == f"There is a mistake in {broken}."
    host.write(host.user, "base: {extends: mini}")
    assert find_environment("mine").name == "mine"


def test_all_mistakes_of_the_wanted_environments_file_are_told(host: Host) -> None:
    path = host.write(
        host.here, "a: {extends: mini, cpus: x}\nb: {extends: mini}\nc: {image: '${a.b}'}"
    )
    error = refused("b")
    assert error.code is Code.CONFIGURATION
    assert [line.split(": ")[0] for line in error.detail.splitlines()] == [
        f"{path}:1:26",
        f"{path}:3:12",
    ]


def test_describing_a_name_again_is_told_to_whoever_wants_it(host: Host) -> None:
    path = host.write(host.here, "debian12: {image: evil}\nother: {image: x, cpus: many}")
    error = refused("debian12")
    assert error.code is Code.CONFIGURATION
    assert error.detail.startswith(f"{path}:1:1: 'debian12' is described already, at ")
    assert len(error.detail.splitlines()) == 1
    assert find_environment("mini").name == "mini"


def test_abstract_environment_is_only_there_to_be_extended(host: Host) -> None:
    host.write(host.here, "part: {abstract: true}")
    assert "only there to be extended" in refused("part").sentence


def test_library_tells_what_it_did_not_read(host: Host) -> None:
    host.write(host.here, "mine: {extends: mini}").chmod(0o666)
    (told,) = open_library().ignored
    assert told.startswith(str(host.here))


# ── who may use an environment ───────────────────────────────────────────────────────────────────


def limited(*users: str) -> Environment:
    return Environment(name="gpu", image="x", size=Size(1, 1), users=users)


def test_environment_is_for_its_users_and_groups_and_for_root() -> None:
    gid = os.stat("/etc/passwd").st_gid  # noqa: PTH116
    eve = User(name="eve", uid=1000, gid=1000, group="eve", groups=(1000, gid), home="/")
    root = User(name="root", uid=0, gid=0, group="root", groups=(0,), home="/root")
    group = Path("/etc/passwd").group()
    assert may_use(limited(), eve)
    assert may_use(limited("eve"), eve)
    assert may_use(limited("bob", f"@{group}"), eve)
    assert not may_use(limited("bob"), eve)
    assert not may_use(limited("@eve", "@no-such-group"), eve)
    assert may_use(limited("bob"), root)
    with pytest.raises(EncampError, match="is not for you: bob may use it"):
        check_use(limited("bob"), eve)


def test_daemons_of_an_ordinary_account_read_that_accounts_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ENCAMP_USER_CONFIG", str(tmp_path / "mine"))
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path / "root's"))
    found = {}
    for number in (0, 1000):
        monkeypatch.setattr("os.geteuid", lambda number=number: number)
        found[number] = [place.path for place in definition_places("triggers")]
    assert found == {
        0: [f"{tmp_path}/root's/triggers.yaml", f"{tmp_path}/root's/triggers.ini"],
        1000: [f"{tmp_path}/mine/triggers.yaml", f"{tmp_path}/mine/triggers.ini"],
    }
