"""The store's own troubles: a full disk under it, and a backup that is put back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from encamp.home import Home
from tests.builds import give_images
from tests.manager.store.postgres import ADMINISTRATOR, PROGRAMS, ROLE, PostgreSQL, postgresql
from tests.site.siting import QUICK, RunningSite, root_only, running_site

pytestmark = [pytest.mark.site, root_only]


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=711", "tmpfs", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


def test_with_a_full_disk_hosts_are_known_commands_refused_and_room_is_enough_to_go_on(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "manager-home"), running_site(tmp_path) as site:
        site("command", "send", "node1", "agent.ping")
        filler = site.home / "filler"
        with open(filler, "wb") as file:
            while True:
                try:
                    os.write(file.fileno(), bytes(4096))
                except OSError:
                    break

        def refused() -> bool:
            done = site("command", "send", "node1", "agent.ping", check=False)
            return done.returncode == 74 and "full" in done.stderr.lower()

        # The store may have had room of its own for some more.
        site.wait_for("the refusal", refused)
        assert site.hosts()["node1"]["presence"] == "joined"
        assert "full" in site("status").stdout.lower()
        site("properties", "node1", "--refresh")
        filler.unlink()
        site.wait_for(
            "commands again",
            lambda: site("command", "send", "node1", "agent.ping", check=False).returncode == 0,
        )
        site.wait_for(
            "the events that waited",
            lambda: any(
                "full" in event["sentence"].lower() for event in site.events("store trouble")
            ),
        )


PAGE = (Path(__file__).parents[2] / "docs" / "store.md").read_text()


def commands_of(heading: str) -> list[list[str]]:
    """The commands of each block of a section of the page."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return [block.strip().splitlines() for block in section.split("```")[1::2]]


def carry_out(site: RunningSite, lines: list[str], **variables: str) -> str:
    """What the page says, at this site; what the last command printed."""
    printed = ""
    backups = site.root / "backup"
    backups.mkdir(mode=0o777, exist_ok=True)
    for line in lines:
        if line == "systemctl stop encamp-manager":
            site.daemons["manager"].stop()
        elif line == "systemctl start encamp-manager":
            site.start("manager")
            site.wait_for_hosts("node1")
        elif line.startswith("encamp "):
            printed = site(*line.split()[1:]).stdout
        else:
            line = line.replace("/var/lib/encamp", str(site.home)).replace("/backup", str(backups))
            environment = {**os.environ, **variables, "PATH": f"{PROGRAMS}:{os.environ['PATH']}"}
            subprocess.run(["sh", "-ec", line], env=environment, check=True, timeout=60)
    return printed


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_backup_that_is_put_back_as_the_page_says_runs_nothing_twice(
    kind: str, tmp_path: Path, site_home: Home
) -> None:
    number = ["sqlite", "postgresql"].index(kind)
    with ExitStack() as held:
        settings, variables = f"{QUICK}host: node1\n", {}
        if kind == "postgresql":
            server: PostgreSQL = held.enter_context(postgresql())
            with server.administrator() as connection:
                connection.execute(f"CREATE DATABASE encamp OWNER {ROLE}")
            settings += f"store: {server.socket_url('encamp')}\n"
            place = {"PGHOST": str(server.directory), "PGPORT": str(server.port)}
            variables = {**place, "PGUSER": ADMINISTRATOR}
        site = held.enter_context(running_site(tmp_path, settings=settings))
        give_images(Home(site.homes["node1"]), site_home)
        shared = tmp_path / "shared"
        shared.mkdir()
        share = ("--share", f"{shared}:/shared")
        script = "echo began >> /shared/began; until test -e /shared/go; do sleep 0.1; done; exit 3"
        running = site("run", "--detach", *share, "--", "sh", "-c", script).stdout.strip()
        site.wait_for("a job to run", (shared / "began").exists)
        site.wait_for("it to be known", lambda: site.ask("jobs")[0]["state"] == "running")
        site.daemons["node1"].stop()
        site.wait_for_hosts("node1", presence="left")
        job = site("run", "--detach", *share, "--", "sh", "-c", "echo ran >> /shared/ran")
        waiting = job.stdout.strip()
        carry_out(site, commands_of("Backup")[number], **variables)
        site.start("node1")
        site("wait", waiting)
        (shared / "go").touch()
        assert site("wait", running, check=False).returncode == 3
        *before, last = commands_of("Putting a backup back")[number]
        shown = carry_out(site, before, **variables)
        assert "put back from a backup" in shown
        assert "put back from a backup" in site("hosts").stderr
        assert "--cancel-waiting" in site("why", waiting).stdout
        [told] = [job for job in site.ask("jobs") if job["request"]["id"] == waiting]
        assert told["state"] == "waiting"
        # Its host remembers how it ended.
        assert site("wait", running, check=False).returncode == 3
        assert "1 waiting: cancelled" in carry_out(site, [last])
        assert site("run", "--", "echo", "again").stdout == "again\n"
        assert (shared / "ran").read_text() == "ran\n"
        assert (shared / "began").read_text() == "began\n"
