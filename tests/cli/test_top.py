"""The live view: it fits, it shows what matters, and it leaves the terminal as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from rich.screen import Screen

from encamp.cli.top_view import Snapshot, View, bar, share
from encamp.model.errors import Code, EncampError
from encamp.model.host import Presence
from tests.cli.driving import Terminal, on_terminal
from tests.cli.sample_manager import Answering, answered
from tests.cli.sample_site import Site
from tests.conftest import ENCAMP

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
"""How a terminal is told to show another screen, and to show the former one again."""


def drawn(snapshot: Snapshot, width: int, height: int | None) -> list[str]:
    """As it stands on a screen of that size; of no size at all: as it is printed."""
    console = Console(width=width, height=height or 25, color_system=None)
    if height is None:
        rendered = console.render_lines(View(snapshot), pad=False)
    else:
        rendered = console.render_lines(Screen(View(snapshot, keys="q leaves")), pad=False)
    lines = ["".join(segment.text for segment in line) for line in rendered]
    return [line for line in lines if line.strip()]


@pytest.fixture
def site() -> Site:
    return Site(time.time())


@pytest.mark.parametrize("width", [60, 80, 100, 129, 130, 160, 250])
@pytest.mark.parametrize("height", [20, 24, 30, 50])
def test_view_fits_the_terminal(site: Site, width: int, height: int) -> None:
    lines = drawn(site.snapshot, width, height)
    assert len(lines) <= height
    assert lines[-1].split() == ["q", "leaves"]
    assert {line[0] for line in lines[1:-1]} <= set("╭│╰")
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for part in ("hosts", "machines", "commands under way", "events", "q leaves", "perugia"):
        assert part in text


def test_view_of_thousands_fits_and_puts_trouble_first(site: Site) -> None:
    many = [
        msgspec.structs.replace(site.hosts[1 + number % 4], name=f"n{number:04}")
        for number in range(3000)
    ]
    many[2500] = msgspec.structs.replace(many[2500], presence=Presence.LOST)
    snapshot = msgspec.structs.replace(site.snapshot, hosts=many, machines=site.machines * 900)
    lines = drawn(snapshot, 80, 24)
    assert lines[-1].split() == ["q", "leaves"]
    assert "n2500" in lines[3]
    assert "94%" in lines[4]
    assert "more" in lines[1]


@pytest.mark.parametrize("width", [80, 160])
def test_reason_of_a_lost_host_takes_no_room_from_the_others(site: Site, width: int) -> None:
    former = drawn(site.snapshot, width, 24)
    reason = "its connection was closed without a goodbye, and nothing was heard of it for a day"
    hosts = [*site.hosts[:-1], msgspec.structs.replace(site.hosts[-1], reason=reason)]
    lines = drawn(msgspec.structs.replace(site.snapshot, hosts=hosts), width, 24)
    (lost,) = [line for line in lines if "node05  lost" in line]
    assert "1m ago: its connection was closed" in lost
    assert [line for line in lines if line != lost] == [
        line for line in former if "node05  lost" not in line
    ]


def test_nothing_is_shortened_when_there_is_no_terminal_but_what_is_long_over(site: Site) -> None:
    past = msgspec.structs.replace(site.events[0], sentence="long over")
    snapshot = msgspec.structs.replace(site.snapshot, events=[*[past] * 90, *site.events])
    text = "\n".join(drawn(snapshot, 100, None))
    for host in site.hosts:
        assert host.name in text
    for event in site.events:
        assert event.sentence[:60] in text
    assert text.count("long over") + len(site.events) == 10


@pytest.mark.parametrize("width", [80, 160])
def test_jobs_that_wait_are_told_with_the_reason_before_those_that_run(
    site: Site, width: int
) -> None:
    lines = drawn(site.snapshot, width, 24)
    assert "2 waiting" in lines[0]
    places = {}
    for id in ("1e57ab00", "2e57ab00", "3e57ab00"):
        [(place, line)] = [(at, line) for at, line in enumerate(lines) if id in line]
        places[id] = place
        assert "debian12 " in line
    assert list(places) == sorted(places, key=lambda id: places[id])
    oldest, running = (lines[places[id]] for id in ("1e57ab00", "3e57ab00"))
    assert all(word in oldest for word in ("./fit", "alice", "waiting", "3m", "5 hosts"))
    assert all(word in running for word in ("./render", "bob", "running", "20s", "node02"))


def test_site_that_is_printed_once_has_its_queue_and_the_latest_events(
    manager: Answering, site: Site, variables: dict[str, str]
) -> None:
    site.events[:0] = [msgspec.structs.replace(site.events[0], sentence="long over")] * 90
    done = subprocess.run(
        [ENCAMP, "top", "--once"],
        env={**os.environ, **variables, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "./fit" in done.stdout
    assert len(done.stdout.splitlines()) < 50


def test_trouble_stands_in_the_first_line(site: Site) -> None:
    snapshot = msgspec.structs.replace(site.snapshot, trouble="the manager does not answer")
    assert "the manager does not answer" in drawn(snapshot, 80, 24)[0]


@pytest.mark.parametrize(
    ("fraction", "shown"),
    [
        (0.0, "········   0%"),
        (1.0, "████████ 100%"),
        (0.5, "████····  50%"),
        (7.0, "████████ 100%"),
    ],
)
def test_bars_are_as_long_as_what_they_show(fraction: float, shown: str) -> None:
    assert bar(fraction, 8).plain == shown


def test_room_is_shared_and_what_one_does_not_need_goes_to_others() -> None:
    assert share(None, [5, 0, 2], (1, 1, 1)) == [5, 1, 2]
    assert share(10, [100, 2, 100], (4, 2, 2)) == [5, 2, 3]
    assert share(2, [9, 9, 9], (1, 1, 1)) == [1, 1, 1]
    assert share(20, [3, 4], (1, 1), fill=True) == [3, 17]


@pytest.fixture
def manager(tmp_path: Path, site: Site) -> Iterator[Answering]:
    with answered(tmp_path / "door.sock", Answering(site)) as manager:
        yield manager


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    return {
        "ENCAMP_DOOR": str(tmp_path / "door.sock"),
        "ENCAMP_DEBUG": "1",
        "TERM": "xterm-256color",
    }


def watching(variables: dict[str, str]) -> AbstractContextManager[Terminal]:
    return on_terminal(variables, "top", "--every", "0.2", rows=24, columns=80)


@pytest.mark.parametrize("leave", [b"q", b"\x03", signal.SIGTERM])
def test_terminal_is_as_it_was_afterwards(
    manager: Answering, variables: dict[str, str], leave: bytes | signal.Signals
) -> None:
    with watching(variables) as terminal:
        terminal.wait_for(ENTER)
        terminal.wait_for(b"commands under way")
        assert not terminal.echoes
        if isinstance(leave, bytes):
            terminal.type(leave)
        else:
            os.kill(terminal.process.pid, leave)
        terminal.wait_for(LEAVE)
        assert terminal.process.wait() == 0
        assert terminal.echoes


def test_view_follows_the_site_and_the_size_of_the_terminal(
    manager: Answering, site: Site, variables: dict[str, str]
) -> None:
    """Whatever size of it was once written down."""
    with watching({**variables, "COLUMNS": "80", "LINES": "24"}) as terminal:
        terminal.wait_for(b"node05")
        site.hosts[-1] = msgspec.structs.replace(site.hosts[-1], name="changed")
        terminal.wait_for(b"changed")
        terminal.resize(40, 160)
        os.kill(terminal.process.pid, signal.SIGWINCH)
        terminal.wait_for(b"2 triggers")
        terminal.type(b"\x1b[A")
        terminal.wait_for(b"changed")
        terminal.type(b"q")
        terminal.wait_for(LEAVE)


def test_view_goes_on_when_the_manager_is_restarted(
    site: Site, variables: dict[str, str], tmp_path: Path
) -> None:
    with answered(tmp_path / "door.sock", Answering(site)):
        watched = watching(variables)
        terminal = watched.__enter__()
        terminal.wait_for(b"node05")
    try:
        terminal.wait_for(b"the manager does not")
        site.hosts[-1] = msgspec.structs.replace(site.hosts[-1], name="again")
        with answered(tmp_path / "door.sock", Answering(site)):
            terminal.wait_for(b"again")
            terminal.type(b"q")
            terminal.wait_for(LEAVE)
            assert terminal.process.wait() == 0
    finally:
        watched.__exit__(None, None, None)


def test_view_goes_on_when_the_manager_has_no_time_for_it(
    manager: Answering, site: Site, variables: dict[str, str]
) -> None:
    with watching(variables) as terminal:
        terminal.wait_for(b"node05")
        manager.refusal = EncampError(Code.NO_ROOM, "Too many are asking.", transient=True)
        terminal.wait_for(b"Too many are asking.")
        site.hosts[-1] = msgspec.structs.replace(site.hosts[-1], name="again")
        manager.refusal = None
        terminal.wait_for(b"again")


def test_one_look_can_be_read_by_programs(manager: Answering, variables: dict[str, str]) -> None:
    done = subprocess.run(
        [ENCAMP, "top", "--once", "--json"],
        env={**os.environ, **variables},
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["status"]["site"] == "perugia"


def test_live_view_needs_a_terminal(manager: Answering, variables: dict[str, str]) -> None:
    done = subprocess.run(
        [ENCAMP, "top"], env={**os.environ, **variables}, capture_output=True, check=False
    )
    assert done.returncode == 64
    assert b"--once" in done.stderr
