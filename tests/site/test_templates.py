"""Templates: made once, kept apart, noticed when damaged."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from encamp.home import Home
from tests.cli.driving import Start, starter
from tests.conftest import Encamp, left_behind
from tests.site.siting import root_only

pytestmark = pytest.mark.site

MIB = 1024 * 1024
ODD_SIZE = 100
"""MiB of memory that only these tests ask for."""
RUN = ("run", "--memory", f"{ODD_SIZE}M")
TELLING = {"ENCAMP_QUIET": ""}
"""The variables of an `encamp` that says what it is doing."""


@pytest.fixture
def start(encamp_environment: dict[str, str], tmp_path: Path, nothing_left: None) -> Start:
    return starter({**encamp_environment, **TELLING}, tmp_path)


def templates(encamp: Encamp) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(encamp("template", "ls", "--json").stdout)
    return found


def newest(encamp: Encamp, memory: int) -> str:
    """The key of the newest template of this size (older ones may be left from older programs)."""
    keys = [
        (float(str(template["created"])), str(template["key"]))
        for template in templates(encamp)
        if json.loads(json.dumps(template))["hardware"]["size"]["memory"] == memory * MIB
    ]
    return max(keys)[1]


def remove_odd_size(encamp: Encamp) -> None:
    for template in json.loads(json.dumps(templates(encamp))):
        if template["hardware"]["size"]["memory"] == ODD_SIZE * MIB:
            encamp("template", "rm", template["key"])


def test_ten_that_ask_at_the_same_moment_make_one_template(encamp: Encamp) -> None:
    remove_odd_size(encamp)
    before = {template["key"] for template in templates(encamp)}

    def ask(number: int) -> tuple[bytes, bytes]:
        done = encamp(*RUN, "--", "echo", str(number), variables=TELLING)
        return done.stdout, done.stderr

    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(ask, range(10)))
    assert [out for out, _ in answers] == [b"%d\n" % number for number in range(10)]
    made = [said for _, said in answers if b"freezing 'mini'" in said]
    assert len(made) == 1
    assert len({template["key"] for template in templates(encamp)} - before) == 1


def test_mistake_in_the_settings_is_told_before_anything_boots(
    encamp: Encamp, tmp_path: Path
) -> None:
    remove_odd_size(encamp)
    before = templates(encamp)
    settings = tmp_path / "settings.yaml"
    settings.write_text("template_limit: ten\n")
    settings.chmod(0o600)
    told = {**TELLING, "ENCAMP_USER_CONFIG": str(tmp_path)}
    done = encamp(*RUN, "--", "true", variables=told, check=False)
    assert done.returncode == 78
    assert b"settings.yaml:1:17: " in done.stderr
    assert b"freezing" not in done.stderr
    assert templates(encamp) == before
    # Nor does it go unnoticed as long as there is a template.
    settings.write_text("templat_limit: 3G\n")
    done = encamp("run", "--", "true", variables=told, check=False)
    assert done.returncode == 78
    assert b"did you mean 'template_limit'?" in done.stderr


def test_signal_while_a_template_is_made_leaves_nothing_of_it(
    encamp: Encamp, start: Start, site_home: Home
) -> None:
    remove_odd_size(encamp)
    with start(*RUN, "--", "echo", "never") as running:
        while b"booting 'mini' once" not in running.stderr.readline():
            assert running.process.poll() is None
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait() == 128 + signal.SIGTERM
        assert running.stdout.read() == b""
    assert left_behind(site_home) == []
    assert encamp(*RUN, "--", "echo", "now").stdout == b"now\n"


def garble_record(directory: Path) -> None:
    (directory / "template.json").write_text("no record at all")


def cut_state(directory: Path) -> None:
    os.truncate(directory / "state", 1000)


def overwrite_memory(directory: Path) -> None:
    with (directory / "memory").open("r+b") as file:
        file.seek(20 * MIB)
        file.write(os.urandom(MIB))


def rot_state(directory: Path) -> None:
    """Damage that shows only when the file is read."""
    path = directory / "state"
    status = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(1000)
        file.write(os.urandom(100_000))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def give_memory_away(directory: Path) -> None:
    """As if the account of root's machines had been made anew."""
    os.chown(directory / "memory", -1, 54321)


@pytest.mark.parametrize(
    "damage",
    [
        garble_record,
        cut_state,
        overwrite_memory,
        rot_state,
        pytest.param(give_memory_away, marks=root_only),
    ],
)
def test_damaged_template_is_noticed_and_made_again(
    encamp: Encamp, site_home: Home, damage: Callable[[Path], None]
) -> None:
    encamp(*RUN, "--", "true")
    key = newest(encamp, ODD_SIZE)
    damage(site_home.templates / key)
    if damage in (cut_state, overwrite_memory):
        assert b"damaged: made again on next use" in encamp("template", "ls").stdout
    done = encamp(*RUN, "--", "echo", "as if nothing had happened")
    assert done.stdout == b"as if nothing had happened\n"
    assert newest(encamp, ODD_SIZE) == key
    again = encamp(*RUN, "--", "true", variables=TELLING)
    assert b"booting" not in again.stderr


def test_template_whose_rotten_memory_kills_its_clone_is_removed(
    encamp: Encamp, site_home: Home
) -> None:
    encamp(*RUN, "--", "true")
    memory = site_home.templates / newest(encamp, ODD_SIZE) / "memory"
    status = memory.stat()
    with memory.open("r+b") as file:
        file.write(b"\xff" * status.st_size)
    os.utime(memory, ns=(status.st_atime_ns, status.st_mtime_ns))
    # The first clone dies: before it was told anything, and is made again, or afterwards.
    done = encamp(*RUN, "--", "echo", "up", check=False, variables=TELLING)
    if done.returncode == 0:
        assert b"booting 'mini' once" in done.stderr
    else:
        assert done.returncode in (71, 72)
        assert b"Its template was damaged and has been removed: try again." in done.stderr
    assert encamp(*RUN, "--", "echo", "up").stdout == b"up\n"


def test_templates_are_kept_apart_by_all_that_must_match(encamp: Encamp, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    shares = [word for number in range(3) for word in ("--share", f"d:/d{number}")]
    requests: list[tuple[str, ...]] = [
        (*shares[:2],),
        (*shares[:4],),
        (*shares,),
        (),
        ("--network", "user"),
        ("--cpus", "2", "--memory", "96M", "--disk", "64M"),
    ]
    keys = []
    for request in requests:
        encamp("run", *request, "--after", "keep", "--name", "clone", "--", "true")
        keys.append(json.loads(encamp("show", "--json", "clone").stdout)["template"])
        encamp("rm", "--force", "clone")
    assert len(set(keys[:4])) == 1, "any number of shares takes the same hardware"
    assert len(set(keys[3:])) == 3
    listed = {template["key"]: template for template in templates(encamp)}
    assert set(keys) <= set(listed)
    table = encamp("template", "ls").stdout.decode()
    assert all(key[:8] in table for key in keys)


def test_template_is_removed_while_its_clones_live_on(encamp: Encamp, site_home: Home) -> None:
    encamp("start", "--name", "clone", "--memory", f"{ODD_SIZE}M")
    key = newest(encamp, ODD_SIZE)
    assert encamp("template", "rm", key).stdout.decode().strip() == key[:8]
    assert not (site_home.templates / key).exists()
    script = "find / -xdev -type f | xargs cat > /dev/null; echo alive"
    assert encamp("exec", "clone", "--", "sh", "-c", script).stdout == b"alive\n"
    encamp("rm", "--force", "clone")
    wrong = encamp("template", "rm", key, check=False)
    assert wrong.returncode == 64
    assert b"fits 0 templates" in wrong.stderr
    assert encamp("template", "rm", check=False).returncode == 64


def test_oldest_template_that_no_machine_needs_goes_when_there_are_too_many(
    encamp: Encamp, site_home: Home, tmp_path: Path
) -> None:
    def memory(key: str) -> int:
        return (site_home.templates / key / "memory").stat().st_blocks * 512

    encamp("start", "--name", "clone", "--memory", "101M")
    needed = newest(encamp, 101)
    encamp("run", "--memory", "102M", "--", "true")
    unused = newest(encamp, 102)
    for moment, key in enumerate((needed, unused)):
        os.utime(site_home.templates / key, (moment, moment))
    assert memory(needed) < 100 * MIB, "pages of zeros take no room"
    config = tmp_path / "config"
    config.mkdir(mode=0o700)
    keys = [str(template["key"]) for template in templates(encamp)]
    state = MIB  # The state of its devices is beside the memory.
    limit = sum(memory(key) + state for key in keys) // MIB
    (config / "settings.yaml").write_text(f"template_limit: {limit}M\n")
    variables = {"ENCAMP_USER_CONFIG": str(config)}
    encamp("run", "--memory", "103M", "--", "true", variables=variables)
    left = {str(template["key"]) for template in templates(encamp)}
    assert unused not in left
    assert {needed, newest(encamp, 103)} <= left
    encamp("rm", "--force", "clone")
    for size in (101, 103):
        encamp("template", "rm", newest(encamp, size))
