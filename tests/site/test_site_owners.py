"""What one owner's jobs meet on a real site of root's is that owner's affair, and nobody else's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from encamp.home import Home
from encamp.model.errors import Code
from tests.builds import give_images
from tests.conftest import ENCAMP, left_behind
from tests.site.accounts import Account, accounts
from tests.site.siting import PATIENCE, Daemon, root_only

pytestmark = [pytest.mark.site, root_only]

HOST = os.uname().nodename
ENVIRONMENTS = """
stubborn:
  extends: mini
  ready: {file: /never/there, timeout: 1}
distant:
  image: {debian: bookworm, packages: [hello]}
"""


class Served:
    """Root's `encamp serve`, and the accounts that ask it for machines."""

    def __init__(self, place: Path, users: list[Account]) -> None:
        self.alice, self.mallory = users
        self.home = Home(place / "home")
        self.config = place / "etc"
        self.config.mkdir()
        (self.config / "environments.yaml").write_text(ENVIRONMENTS)
        # Debian's archive, as a host without a network finds it.
        (place / "sources.list").write_text("deb http://127.0.0.1:9/debian bookworm main\n")
        apt = f'Dir::Etc::sourcelist "{place}/sources.list";\nDir::Etc::sourceparts "/dev/null";\n'
        (place / "apt.conf").write_text(apt)
        (self.config / "site.yaml").write_text("placement: {pause: 10m}\n")
        self.variables = {
            "ENCAMP_HOME": str(self.home.root),
            "ENCAMP_SITE_CONFIG": str(self.config),
            "ENCAMP_USER_CONFIG": str(place / "nowhere"),
            "APT_CONFIG": str(place / "apt.conf"),
        }
        self.daemon = Daemon([ENCAMP, "serve", "--verbose"], self.variables, place / "log")

    def ask(
        self, user: Account, *words: str | Path, code: int | None = 0
    ) -> subprocess.CompletedProcess[bytes]:
        door = {"ENCAMP_DOOR": str(self.home.root / "manager.sock"), "COLUMNS": "200"}
        done = user.encamp(*words, check=False, variables=door)
        said = f"{words}: {done.returncode}\n{done.stderr.decode()}\n{self.daemon.said()[-3000:]}"
        assert code in (None, done.returncode), said
        return done

    def json(self, user: Account, *words: str) -> Any:
        return json.loads(self.ask(user, *words, "--json").stdout)

    def submit(self, user: Account, *words: str) -> str:
        return self.ask(user, "run", "--detach", *words, "--", "true").stdout.decode().strip()

    def spared(self, user: Account) -> list[str]:
        """What is not tried on the host, as somebody is told."""
        told: list[str] = self.json(user, "why", HOST)["history"]
        return [line for line in told if "is not tried there" in line]

    def own(self, user: Account) -> Home:
        return Home(self.home.owners / str(user.uid))

    def wait_for(self, what: str, true: Callable[[], Any]) -> Any:
        end = time.monotonic() + PATIENCE
        while not (found := true()):
            assert time.monotonic() < end, f"{what}\n{self.daemon.said()[-3000:]}"
            time.sleep(0.05)
        return found


def nothing_left(home: Home) -> bool:
    return not home.machines.exists() or left_behind(home) == []


@pytest.fixture(scope="module")
def served(site_home: Home) -> Iterator[Served]:
    before = os.umask(0o022)
    with ExitStack() as held:
        held.callback(os.umask, before)
        place = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="encamp-owners-")))
        place.chmod(0o755)
        nothing = Home(place / "nothing").prepare()
        users = held.enter_context(accounts(2, place, nothing))
        served = Served(place, users)
        give_images(served.home.prepare(), site_home)
        served.daemon.start()
        held.callback(served.daemon.end)
        served.wait_for(
            "the host",
            lambda: served.ask(served.alice, "hosts", code=None).stdout.find(b"joined") > 0,
        )
        yield served
        for own in map(served.own, users):
            served.wait_for("all to end", partial(nothing_left, own))


def test_job_with_a_share_that_its_owner_may_not_read_fails_at_once(served: Served) -> None:
    for words in (("--share", "/root:/w"), ("--share", "/no/such/directory:/w")):
        code = Code.NOT_PERMITTED if "/root:/w" in words else Code.INPUT_MISSING
        done = served.ask(served.mallory, "run", *words, "--", "true", code=code.value)
        assert b"Cannot share /" in done.stderr
        detached = served.submit(served.mallory, *words)
        done = served.ask(served.mallory, "wait", detached, code=code.value)
        assert b"Cannot share /" in done.stderr
        assert served.json(served.mallory, "why", detached)["state"] == "failed"
    assert served.spared(served.alice) == []
    assert served.ask(served.alice, "run", "--", "echo", "works").stdout == b"works\n"


@pytest.mark.parametrize("what", ["machines", "locks", "templates", "cache"])
def test_job_of_an_owner_who_has_locked_his_own_directory_fails_at_once(
    served: Served, what: str
) -> None:
    served.ask(served.mallory, "run", "--", "true")
    directory = served.own(served.mallory).root / what
    mode = directory.stat().st_mode
    kept = directory.with_suffix(".kept")
    try:
        # What is below it cannot be reached any more, or cannot be written.
        directory.chmod(0)
        done = served.ask(served.mallory, "run", "--", "true", code=Code.NOT_PERMITTED.value)
        assert str(directory).encode() in done.stderr
        directory.chmod(mode)
        # The same if it leads to where he may not go.
        directory.rename(kept)
        directory.symlink_to("/root")
        served.ask(served.mallory, "run", "--", "true", code=Code.NOT_PERMITTED.value)
    finally:
        if kept.exists():
            directory.unlink()
            kept.rename(directory)
        directory.chmod(mode)
    assert served.spared(served.alice) == served.spared(served.mallory) == []
    served.ask(served.mallory, "run", "--", "true")


def test_what_fails_for_one_owner_is_tried_for_others_and_ends_with_its_cause(
    served: Served,
) -> None:
    failing = served.submit(served.mallory, "-e", "stubborn")
    served.wait_for("a failure", lambda: served.spared(served.mallory))
    [told] = served.spared(served.mallory)
    assert f"stubborn of {served.mallory.name}" in told
    assert served.spared(served.alice) == []
    # Another owner's is made all the same, and so it is found out that it fails for all.
    others = served.submit(served.alice, "-e", "stubborn")
    everybodys = served.wait_for(
        "what fails for two to be kept from all",
        lambda: [line for line in served.spared(served.alice) if "stubborn of" not in line],
    )
    assert "'stubborn'" in str(everybodys)
    served.ask(served.mallory, "cancel", failing)
    served.ask(served.alice, "cancel", others)
    served.wait_for("the end", lambda: not served.json(served.alice, "jobs"))
    assert served.spared(served.alice) == served.spared(served.mallory) == []


def test_pauses_end_when_the_sites_files_are_read_again(served: Served) -> None:
    failing = served.submit(served.mallory, "-e", "stubborn")
    try:
        served.wait_for("a failure", lambda: served.spared(served.mallory))
        served.wait_for(
            "it to wait", lambda: served.json(served.mallory, "why", failing)["state"] == "waiting"
        )
        attempts = served.json(served.mallory, "jobs")[0]["attempt"]
        os.kill(served.daemon.pid, signal.SIGHUP)
        served.wait_for(
            "another attempt",
            lambda: served.json(served.mallory, "jobs")[0]["attempt"] > attempts,
        )
    finally:
        served.ask(served.mallory, "cancel", failing)


def test_image_that_cannot_be_had_is_told_once_with_what_to_do(served: Served) -> None:
    words = ("run", "-e", "distant", "--", "true")
    done = served.ask(served.mallory, *words, code=Code.BUILD_FAILED.value)
    assert b"Debian's archive cannot be reached" in done.stderr
    assert b"encamp image pull" in done.stderr
    detached = served.submit(served.mallory, "-e", "distant")
    done = served.ask(served.mallory, "wait", detached, code=Code.BUILD_FAILED.value)
    assert b"encamp image pull" in done.stderr
    jobs = served.json(served.mallory, "jobs", "--all")
    assert {job["attempt"] for job in jobs if job["request"]["environment"] == "distant"} == {1}
    assert served.spared(served.alice) == []
