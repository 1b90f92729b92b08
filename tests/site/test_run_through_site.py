"""Jobs and machines through a site of real daemons: to whoever asks, as if they were here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from encamp.home import Home
from encamp.meeting.kept import FETCHED
from tests.cli.driving import Start, on_terminal, starter
from tests.conftest import ENCAMP, left_behind
from tests.site.siting import RunningSite, root_only, running_site

pytestmark = [pytest.mark.site, root_only]

EVERY_BYTE = bytes(range(256))
WAITS = "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.1; done"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, site_home: Home) -> Iterator[RunningSite]:
    """One host, which makes its machines in the home of the suite. Clients on another host would
    come to it over TLS; those on this one go through its socket."""
    root = tmp_path_factory.mktemp("site")
    with running_site(root, (), start=False) as made:
        made.add_agent("node1", site_home.root)
        with open(root / "node1" / "site.yaml", "a") as file:
            file.write("meeting:\n  listen: 127.0.0.1:0\n  address: 127.0.0.1\n")
        try:
            made.start()
            made.wait_for_hosts("node1")
            yield made
        finally:
            made.daemons["node1"].end()


@pytest.fixture
def start(site: RunningSite, tmp_path: Path, nothing_left: None) -> Start:
    return starter(site.environment, tmp_path)


@pytest.fixture(autouse=True)
def clean(nothing_left: None) -> None:
    """No test leaves a machine behind."""


def jobs(site: RunningSite, *more: str) -> list[Any]:
    found: list[Any] = site.ask("jobs", *more)
    return found


def test_streams_and_exit_code_are_the_commands_own(start: Start) -> None:
    sent = EVERY_BYTE * 4096
    script = "cat > all; cat all; printf 'to the other one' >&2; exit 3"
    with start("run", "--json", "--", "sh", "-c", script) as running:
        out, error = running.process.communicate(sent, timeout=120)
    assert out == sent
    said, _, last = error.partition(b"to the other one")
    assert said == b""
    outcome = json.loads(last)
    assert running.process.returncode == outcome["exit_code"] == 3
    assert {phase["phase"] for phase in outcome["phases"]} >= {"start", "command", "end"}


def test_files_go_in_and_come_out(site: RunningSite, start: Start, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "data").write_bytes(EVERY_BYTE * 10_000)
    (tmp_path / "out").mkdir()
    script = "mkdir left; cp in/data left/a; ln -s a left/b; cat renamed"
    words = ["--in", "in", "--in", "in/data:renamed", "--out", "left:out/", "--out", "nothing"]
    with start("run", *words, "--", "sh", "-c", script) as running:
        out, error = running.process.communicate(timeout=120)
    assert running.process.returncode == 0, error
    assert out == EVERY_BYTE * 10_000
    assert (tmp_path / "out" / "left" / "a").read_bytes() == EVERY_BYTE * 10_000
    assert (tmp_path / "out" / "left" / "b").readlink() == Path("a")
    assert error == b"encamp: --out nothing: nothing in the machine matches.\n"


def test_client_on_another_host_is_met_over_tls(
    site: RunningSite, site_home: Home, tmp_path: Path
) -> None:
    """To this one, the socket of the agent is not there."""
    (tmp_path / "data").write_bytes(EVERY_BYTE * 10_000)
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"']
    words = ["run", "--in", "data", "--out", "copy", "--", "sh", "-c", "cp data copy; cat; exit 9"]
    done = subprocess.run(
        [*hidden, site_home.root, ENCAMP, *words],
        cwd=tmp_path,
        env={**os.environ, **site.environment},
        input=EVERY_BYTE * 10_000,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (9, b"")
    assert done.stdout == EVERY_BYTE * 10_000
    assert (tmp_path / "copy").read_bytes() == EVERY_BYTE * 10_000


def test_signals_reach_the_command(start: Start) -> None:
    with start("run", "--", "sh", "-c", WAITS) as running:
        assert running.line() == b"ready\n"
        running.process.send_signal(signal.SIGINT)
        assert running.line() == b"caught\n"
        assert running.ends_with() == 5


def test_nothing_is_left_of_a_job_whose_client_was_killed(
    site: RunningSite, start: Start, site_home: Home
) -> None:
    with start("run", "--label", "orphan", "--", "sh", "-c", "echo ready; sleep 1000") as running:
        assert running.line() == b"ready\n"
        running.process.kill()
    site.wait_for("the job to end", lambda: not jobs(site))
    site.wait_for("its machine to go", lambda: left_behind(site_home) == [])
    [record] = [one for one in jobs(site, "--all") if one["request"].get("label") == "orphan"]
    assert record["state"] == "failed"
    assert "whoever ran it went away" in record["reason"]["sentence"]


def test_job_and_its_client_outlast_manager_and_agent(site: RunningSite, start: Start) -> None:
    with start("run", "--", "cat") as running:
        running.type(b"before\n")
        assert running.line() == b"before\n"
        for daemon in ("manager", "node1"):
            site.daemons[daemon].kill()
            running.type(b"meanwhile\n" * 20_000)
            site.daemons[daemon].start()
            for _ in range(20_000):
                assert running.line() == b"meanwhile\n"
        site.wait_for_hosts("node1")
        running.type(b"after\n")
        assert running.line() == b"after\n"
        assert running.ends_with() == 0


def test_terminal_is_a_real_one(site: RunningSite) -> None:
    script = "trap 'stty size' WINCH; stty size; while read line; do echo $line; done"
    words = ("run", "-t", "--", "sh", "-c", script)
    with on_terminal(site.environment, *words, rows=31, columns=97) as terminal:
        terminal.wait_for(b"31 97")
        terminal.resize(40, 111)
        terminal.type(b"typed\n")
        terminal.wait_for(b"40 111")
        terminal.type(b"\x04")
        terminal.all()
        assert terminal.process.wait() == 0


def test_detached_job_keeps_what_it_prints_and_leaves(
    site: RunningSite, start: Start, site_home: Home, tmp_path: Path
) -> None:
    def fetched() -> bool:
        """Does its host know that it is?"""
        return any((site_home.root / "commands").glob(f"*/{id}.*/kept/{FETCHED}"))

    (tmp_path / "given").write_text("given")
    script = "cat given; echo oh >&2; cp given left; read line; exit 4"
    words = ["--detach", "--in", "given", "--out", "left", "--label", "later"]
    with start("run", *words, "--", "sh", "-c", script) as running:
        id = running.line().decode().strip()
        # It is let go when its files are with it.
        assert running.process.wait() == 0, running.stderr.read()
    with start("logs", "-f", id[:10]) as following:
        out, error = following.process.communicate(timeout=60)
    assert (out, error, following.process.returncode) == (b"given", b"oh\n", 0)
    assert site("wait", "later", check=False).returncode == 4
    (tmp_path / "given").unlink()
    site("logs", id)
    assert not fetched()
    site("fetch", id)
    assert (tmp_path / "left").read_text() == "given"
    site.wait_for("word of that", fetched)
    site("fetch", id, "--to", tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "left").read_text() == "given"
    # Also when its host was restarted.
    site.daemons["node1"].kill()
    site.daemons["node1"].start()
    site.wait_for_hosts("node1")
    again = site.wait_for("its output", lambda: site("logs", id, check=False).stdout)
    assert again == "given"


def test_detached_job_whose_machine_ran_out_of_memory_or_disk_says_so(site: RunningSite) -> None:
    hungry = "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done"
    for script, said, code in (
        (hungry, "The memory of the machine ran out", 137),
        ("cat /dev/zero > /tmp/full", "The disk of the machine is full", 1),
    ):
        id = site("run", "--detach", "--", "sh", "-c", script).stdout.strip()
        followed = site("logs", "-f", id)
        waited = site("wait", id, check=False)
        assert waited.returncode == code
        why = site("why", id).stdout
        assert f"done with exit code {code}" in why
        for told in (followed.stderr, waited.stderr, site("logs", id).stderr, why):
            assert said in told
            assert "--memory gives one more" in told


def test_kill_all_ends_the_callers_machines_on_the_site(site: RunningSite) -> None:
    site("start", "--name", "left")
    [machine] = site.ask("ps")
    assert site("kill-all").stdout == f"{machine['machine']['id']}\n"
    assert site.ask("ps") == []
    site.wait_for("the end of its request", lambda: jobs(site) == [])


def test_job_that_finds_no_room_says_so_until_it_is_cancelled(
    site: RunningSite, start: Start
) -> None:
    cpus = str(os.cpu_count())
    with start("run", "--cpus", cpus, "--", "sh", "-c", "echo ready; cat") as first:
        assert first.line() == b"ready\n"
        waiting = site("run", "--detach", "--cpus", cpus, "--", "true").stdout.strip()
        [told] = [one for one in jobs(site) if one["request"]["id"] == waiting]
        assert told["state"] == "waiting"
        why = site.ask("why", waiting)
        assert why["reason"]["cause"] == "no room"
        assert [host["host"] for host in why["hosts"]] == ["node1"]
        assert "node1" in site("why", waiting[:8]).stdout
        # Whoever waits for one is told, too.
        with starter({**site.environment, "ENCAMP_QUIET": ""}, Path("/"))(
            "run", "--cpus", cpus, "--", "true"
        ) as second:
            assert b"waits: " in second.stderr.readline()
            second.process.send_signal(signal.SIGINT)
            assert second.process.wait() == 128 + signal.SIGINT
        assert site("cancel", waiting).stdout.strip() == waiting
        assert site("wait", waiting, check=False).returncode == 79
        assert first.ends_with() == 0
    assert jobs(site) == []


def test_what_waits_for_too_long_is_withdrawn_and_says_why(site: RunningSite) -> None:
    words = ("--wait-at-most", "0.2s", "--requirements", "host.memory_free > 8 * TiB")
    for what in (("run", *words, "--", "true"), ("start", *words)):
        done = site(*what, check=False)
        assert (done.returncode, done.stdout) == (85, "")
        assert "withdrawn: it had not begun after 0.2 seconds: node1 does not meet" in done.stderr
    assert jobs(site) == []
    odd = site("run", "--wait-at-most", "0", "--", "true", check=False)
    assert odd.returncode == 64


def test_all_that_waits_is_cancelled_at_once(site: RunningSite) -> None:
    words = ("run", "--detach", "--requirements", "host.load1 < 0", "--", "true")
    waiting = {site(*words).stdout.strip() for _ in range(3)}
    assert site("cancel", check=False).returncode == 64
    assert set(site("cancel", "--waiting").stdout.split()) == waiting
    assert jobs(site) == []
    assert site("cancel", "--all").stdout == ""


def test_what_a_job_keeps_is_a_machine_of_its_owners(site: RunningSite) -> None:
    site("run", "--after", "keep", "--", "true")
    [kept] = site.wait_for("what was kept", lambda: site.ask("ps"))
    assert kept["machine"]["state"] == "running"
    name = kept["machine"]["name"]
    assert site("exec", name, "--", "echo", "here").stdout == "here\n"
    site("rm", "--force", name)
    assert site.ask("ps") == []


def test_what_no_host_could_ever_do_is_refused(site: RunningSite) -> None:
    done = site("run", "--memory", "100T", "--", "true", check=False)
    assert done.returncode != 0
    assert "TiB" in done.stderr
    done = site("run", "--requirements", "host.nam == 'x'", "--", "true", check=False)
    assert done.returncode == 64
    assert "nam" in done.stderr
    assert jobs(site) == []


def test_machine_is_started_used_and_ended(site: RunningSite, start: Start) -> None:
    assert site("start", "--name", "work").stdout == "work\n"
    [record] = jobs(site)
    assert record["state"] == "running"
    with start("exec", "work", "--", "sh", "-c", "cat; hostname; exit 6") as running:
        out, _ = running.process.communicate(b"in\n", timeout=60)
    assert (out, running.process.returncode) == (b"in\nwork\n", 6)
    assert "work" in site("ps", "--site").stdout
    site("cancel", record["request"]["id"])
    site.wait_for("the machine to go", lambda: not jobs(site))
    done = site("exec", "work", "--", "true", check=False)
    assert done.returncode == 68


def test_machine_of_the_site_is_shown_copied_to_read_and_saved(
    site: RunningSite, site_home: Home, tmp_path: Path
) -> None:
    """Its host keeps it in another home than the caller's."""
    site("start", "--name", "far")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "fruit").write_text("fig\n")
    site("copy", tmp_path / "tree", "far:/opt")
    site("exec", "far", "--", "sh", "-c", "cat /opt/tree/fruit > /dev/console; touch /opt/more")
    site("copy", "far:/opt/*", tmp_path / "back")
    assert (tmp_path / "back" / "tree" / "fruit").read_text() == "fig\n"
    assert (tmp_path / "back" / "more").exists()
    missing = site("copy", "far:/missing", tmp_path, check=False)
    assert (missing.returncode, missing.stdout) == (80, "")
    assert missing.stderr == "encamp: /missing: nothing in the machine matches.\n"
    unread = site("copy", tmp_path / "nothing", "far:/opt", check=False)
    assert unread.returncode == 66
    assert "into machine far: it does not exist" in unread.stderr

    shown = site("show", "far").stdout
    assert all(word in shown for word in ("node1", "far", "running", "guest waited for"))
    assert site.ask("show", "far")["name"] == "far"
    printed = site("console", "far").stdout
    assert "encamp-guest: ready" in printed
    assert "fig" in printed

    done = site("save", "far", "orchard:1")
    try:
        assert "on host node1" in done.stderr
        fruit = site("run", "--image", "orchard:1", "--", "cat", "/opt/tree/fruit").stdout
        assert fruit == "fig\n"
    finally:
        site("image", "rm", "orchard:1", ENCAMP_HOME=str(site_home.root))
    for words in (("show", "x"), ("console", "x"), ("save", "x", "y"), ("copy", "x:/a", ".")):
        refused = site(*words, check=False)
        assert refused.returncode == 68, words
        assert "encamp ps --site" in refused.stderr
    site("rm", "--force", "far")


def test_what_was_waited_for_is_what_ps_shows(site: RunningSite, site_home: Home) -> None:
    """Also of machines of the caller's own home, which are moved there and not through the site."""

    def at_home(*words: str) -> str:
        door = str(site.home / "manager.sock")
        return site(*words, ENCAMP_HOME=str(site_home.root), ENCAMP_DOOR=door).stdout

    def listed() -> Any:
        return json.loads(at_home("ps", "--json"))

    site("start", "--name", "ours")
    assert [one["state"] for one in listed()] == ["running"]
    at_home("stop", "ours")
    assert [one["state"] for one in listed()] == ["stopped"]
    at_home("rm", "ours")
    assert listed() == []
    site("start", "--name", "work")
    [row] = site("ps", "--site").stdout.splitlines()[2:]
    assert row.split()[3] == "root"
    site("cancel", "work")
    assert (site.ask("ps"), listed(), jobs(site)) == ([], [], [])


def test_several_machines_print_with_their_numbers(site: RunningSite) -> None:
    done = site("run", "--count", "2", "--", "sh", "-c", "echo one; printf two")
    assert sorted(done.stdout.splitlines()) == ["0: one", "0: two", "1: one", "1: two"]


def test_job_with_a_directory_of_this_host_goes_to_no_other(
    site: RunningSite, tmp_path: Path
) -> None:
    """This host has another name in the site of this test."""
    done = site("run", "--share", tmp_path, "--", "true", check=False)
    assert done.returncode != 0
    assert os.uname().nodename in done.stderr
    assert jobs(site) == []
