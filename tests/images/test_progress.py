"""How far a build is, read from what other programs say."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from encamp.images.apt import downloaded
from encamp.images.installing import Installing
from encamp.images.portion import Aging, Forward, Portion
from encamp.progress import FIGURES
from tests.builds import Told


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.floats(-1, 2))))
def test_progress_never_goes_back_and_stays_within_bounds(
    updates: list[tuple[str, float | None]],
) -> None:
    told = Told()
    portion = Portion(Forward(told))
    for what, fraction in updates:
        portion.part(0.2, 0.9).update(what, fraction)
    assert told.fractions == sorted(told.fractions)
    assert all(0 <= fraction <= 0.9 for fraction in told.fractions)


def test_a_log_hears_from_a_build_while_its_programs_are_silent() -> None:
    class Heard:
        again = threading.Event()

        def update(self, what: str, fraction: float | None = None) -> None:
            if what.partition(FIGURES)[::2] == ("installing gcc", "0 s"):
                self.again.set()

    with Aging(Heard(), aged=0, every=0.01) as progress:
        progress.update("installing gcc", 0.5)
        Heard.again.clear()
        assert Heard.again.wait(30)


def test_apt_says_how_much_it_downloaded() -> None:
    assert downloaded("dlstatus:1:20.9905:Retrieving file 1 of 1 (18.4 MB/s)") == 0.209905
    assert downloaded("Fetched 70.5 MB in 0s (164 MB/s)") is None


def test_mmdebstrap_advances_with_every_package() -> None:
    installing = Installing()
    lines = [
        "I: running apt-get update...",
        "I: downloading packages with apt...",
        "0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.",
        "Get:1 mirror bookworm/main amd64 bash amd64 5.2 [1491 kB]",
        "Get:2 mirror bookworm/main amd64 dash amd64 0.5 [97 kB]",
        "I: installing essential packages...",
        "Unpacking bash (5.2) ...",
        "Setting up bash (5.2) ...",
        "I: installing remaining packages inside the chroot...",
        "0 upgraded, 1 newly installed, 0 to remove and 0 not upgraded.",
        "Get:1 mirror bookworm/main amd64 less amd64 590 [131 kB]",
        "Unpacking less (590) ...",
        "Setting up less (590) ...",
        "I: creating tarball...",
    ]
    fractions = [found for line in lines if (found := installing.read(line)) is not None]
    assert fractions == sorted(set(fractions))
    assert fractions[0] == 0.0
    assert fractions[-1] > 0.9
