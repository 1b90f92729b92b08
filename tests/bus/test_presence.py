"""Who counts as present: by the book alone, and with real processes on real servers."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec

from encamp.bus.frames import ALIVE, LEAVING, LIFE
from encamp.bus.opening import open_bus
from encamp.bus.presence import Roll
from encamp.model.site import Presences
from tests.bus.meeting import Watched, ignore, until
from tests.bus.nats_server import NatsSite
from tests.bus.participant import participant

INTERVAL, SILENCE = 2.0, 6.0


class Book:
    """A roll kept by 'm', with a clock of its own."""

    def __init__(self) -> None:
        self.watched = Watched()
        self.probed: list[str] = []
        self.roll = Roll("m", Presences(), self.watched, self.probed.append)
        self.now = 100.0
        self.hear("m")

    def hear(self, *names: str, run: int = 1, kind: int = ALIVE) -> None:
        for name in names:
            self.roll.heard(name, LIFE.pack(kind, run) + b"g h", self.now)

    def pass_time(self, seconds: float, *heard: str) -> None:
        """Signs of life of those who are heard, and sweeps, as time goes by."""
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            if self.now % INTERVAL == 0:
                self.hear(*heard)
            self.roll.sweep(self.now)


def test_whoever_gives_signs_of_life_stays_present() -> None:
    book = Book()
    book.hear("a")
    book.pass_time(60, "m", "a")
    assert book.watched.of("a") == ["joined"]
    assert book.watched.told[0].groups == ("g", "h")
    assert book.probed == []


def test_whoever_is_silent_is_probed_and_then_lost() -> None:
    book = Book()
    book.hear("a", "b")
    book.pass_time(5, "m", "b")
    assert set(book.probed) == {"a"}
    assert book.watched.of("a") == ["joined"]
    book.pass_time(3, "m", "b")
    assert book.watched.of("a") == ["joined", "lost"]
    assert "nothing was heard of it for 6 seconds" in book.watched.reason("a")
    assert book.watched.of("b") == ["joined"]


def test_whoever_says_something_is_there_before_any_sign_of_life() -> None:
    book = Book()
    book.roll.said("a", 1, book.now)
    assert book.watched.of("a") == ["joined"]
    # Its signs of life are those of the same run, and it is not told of twice.
    book.hear("a")
    book.pass_time(20, "m", "a")
    assert book.watched.of("a") == ["joined"]
    book.roll.said("b", 1, book.now)
    book.pass_time(8, "m", "a")
    assert set(book.probed) == {"b"}
    assert book.watched.of("b") == ["joined", "lost"]
    book.roll.said("c", 1, book.now)
    book.hear("c", kind=LEAVING)
    assert book.watched.of("c") == ["joined", "left"]


def test_an_answered_probe_is_a_sign_of_life() -> None:
    book = Book()
    book.hear("a")
    for _ in range(10):
        book.pass_time(4, "m")
        book.roll.answered("a", book.now)
    assert book.watched.of("a") == ["joined"]


def test_whom_the_server_does_not_know_any_more_is_lost_at_once_for_another_reason() -> None:
    book = Book()
    book.hear("a")
    book.roll.absent("a", book.now)
    assert book.watched.of("a") == ["joined"], "it may be reconnecting"
    book.roll.absent("a", book.now)
    assert book.watched.of("a") == ["joined", "lost"]
    assert "its process ended or was killed" in book.watched.reason("a")


def test_while_the_watcher_is_cut_off_nobody_is_lost_and_afterwards_all_get_their_time() -> None:
    book = Book()
    book.hear("a", "b")
    book.pass_time(60)
    book.roll.absent("a", book.now)
    book.roll.absent("a", book.now)
    assert [told.presence.value for told in book.watched.told] == ["joined", "joined"]
    book.hear("m")
    book.pass_time(5, "m", "b")
    assert book.watched.of("a") == ["joined"]
    book.pass_time(3, "m", "b")
    assert book.watched.of("a") == ["joined", "lost"]
    assert book.watched.of("b") == ["joined"]


def test_after_a_broken_connection_others_have_time_to_reconnect() -> None:
    book = Book()
    book.hear("a")
    book.roll.came_back(book.now)
    book.pass_time(SILENCE - 1, "m")
    book.roll.absent("a", book.now)
    book.roll.absent("a", book.now)
    assert book.watched.of("a") == ["joined"]
    book.pass_time(2, "m")
    assert book.watched.of("a") == ["joined", "lost"]


def test_a_goodbye_counts_only_for_the_run_that_said_it() -> None:
    book = Book()
    book.hear("a", run=1)
    book.now += INTERVAL
    book.hear("a", run=2)
    book.hear("a", run=1, kind=LEAVING)
    assert book.watched.of("a") == ["joined", "lost", "joined"]
    book.hear("a", run=1)
    book.hear("a", run=2, kind=LEAVING)
    assert book.watched.of("a") == ["joined", "lost", "joined", "left"]


def test_whoever_comes_and_goes_without_rest_does_not_drown_the_watcher() -> None:
    book = Book()
    for number in range(1000):
        book.now += 0.01
        book.hear("a", run=number)
        book.hear("a", run=number, kind=LEAVING)
    assert len(book.watched.told) < 50
    book.now += INTERVAL
    book.hear("a", run=5000)
    assert book.watched.of("a")[-1] == "joined"


def test_signs_of_life_that_make_no_sense_are_passed_over() -> None:
    book = Book()
    for life in (b"", b"\x01", b"\xff" * 9, LIFE.pack(ALIVE, 1) + b"\xff\xfe " * 1000):
        book.roll.heard("a", life, book.now)
    assert len(book.watched.told) == 1
    assert len(book.watched.told[0].groups) <= 100


async def test_a_killed_process_is_noticed_and_told_apart_from_one_that_hangs(
    site: NatsSite, tmp_path: Path
) -> None:
    watched = Watched()
    hasty = msgspec.structs.replace(site.manager(), presence=Presences(interval=0.2, silence=5.0))
    async with open_bus(hasty, "manager", (), ignore) as manager:
        await manager.watch(watched)
        with (
            participant(site.member("killed"), "killed", tmp_path / "killed") as killed,
            participant(site.member("hangs"), "hangs", tmp_path / "hangs") as hangs,
        ):
            await until(lambda: watched.of("killed") and watched.of("hangs"))
            hangs.send_signal(signal.SIGSTOP)
            killed.kill()
            await until(lambda: len(watched.of("killed")) == 2 and len(watched.of("hangs")) == 2)
            assert watched.of("killed") == watched.of("hangs") == ["joined", "lost"]
            assert "its process ended or was killed" in watched.reason("killed")
            assert "nothing was heard of it for 5 seconds" in watched.reason("hangs")
            hangs.send_signal(signal.SIGCONT)
            await until(lambda: len(watched.of("hangs")) == 3)
            assert watched.of("hangs")[-1] == "joined"


async def test_one_that_only_talks_is_there_for_a_watcher_that_came_later(site: NatsSite) -> None:
    watched = Watched()
    hasty = msgspec.structs.replace(site.manager(), presence=Presences(interval=0.2, silence=5.0))
    once = Presences(interval=3600.0, silence=7200.0)
    talks = msgspec.structs.replace(site.member("talks"), presence=once)
    async with open_bus(hasty, "manager", (), ignore) as manager:
        async with open_bus(talks, "talks", (), ignore) as bus:
            # Its only sign of life has come and gone when somebody begins to watch.
            await bus.request("manager", b"hello")
            await manager.watch(watched)
            await bus.request("manager", b"hello again")
            await until(lambda: watched.of("talks") == ["joined"])
        await until(lambda: watched.of("talks") == ["joined", "left"])
