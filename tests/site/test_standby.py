"""Two managers: one leads, the other takes over, and nothing is lost or done twice."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from encamp.door.questions import (
    AskCommands,
    AskEvents,
    AskHosts,
    AskRequests,
    FollowCommands,
    IssueCommand,
    Output,
)
from encamp.home import Home
from encamp.model.command import OVER, CommandRecord, CommandState
from encamp.model.errors import Code, EncampError
from encamp.model.event import Event, EventKind
from encamp.model.host import Host
from encamp.model.request import RequestRecord, RequestState
from tests.builds import give_images
from tests.bus.partition import Cable, cable
from tests.manager.store.postgres import PostgreSQL, postgresql
from tests.site.pairing import HOSTS, MUCH, Pair, pair
from tests.site.siting import ENCAMP, free_port, root_only

ADDRESS = f"127.0.0.1:{free_port()}"
"""Where the second answers over HTTP."""
SOON = 1
"""Seconds after which somebody with a load of commands tries the other manager."""

pytestmark = [pytest.mark.site, root_only]


@pytest.fixture(scope="module")
def laid() -> Iterator[Cable]:
    """Between the host of one manager and everything else."""
    with cable() as found:
        yield found


@pytest.fixture(scope="module")
def postgres(laid: Cable) -> Iterator[PostgreSQL]:
    with postgresql(fsync=True, host=laid.here) as server:
        yield server


@pytest.fixture(scope="module")
def database(postgres: PostgreSQL) -> Iterator[str]:
    with postgres.database() as url:
        yield url


@pytest.fixture(scope="module")
def managers(
    tmp_path_factory: pytest.TempPathFactory, laid: Cable, database: str, site_home: Home
) -> Iterator[Pair]:
    """The first is behind the cable."""
    root = tmp_path_factory.mktemp("pair")
    give_images(Home(root / "node1-home").prepare(), site_home)
    with pair(root, host=laid.here) as made:
        made.add_manager("first", database, laid.prefix)
        made.add_manager("second", database, settings=f"api:\n  listen: {ADDRESS}\n")
        # Where jobs are submitted is the agent's host.
        with open(made.site.config / "site.yaml", "a") as file:
            file.write("host: node1\n")
        # All at once: also the managers.
        made.site.start()
        yield made


class Load:
    """Somebody who never stops issuing commands, to whichever manager leads."""

    def __init__(self, managers: Pair) -> None:
        self.issued: list[str] = []
        """Numbers of those that were acknowledged."""
        self.tried = 0
        self._managers = managers
        self._hosts = list(HOSTS)
        self._over = threading.Event()
        self._asking = ThreadPoolExecutor(max_workers=100)
        self._thread = threading.Thread(target=self._go_on)

    def _go_on(self) -> None:
        while not self._over.is_set():
            self.tried += 1
            number = f"task-{self.tried}"
            question = IssueCommand(
                hosts=("node1",), name="program.task", arguments={"number": number}
            )
            # One that is stuck does not hear the question, or answers when it goes on.
            asked = self._asking.submit(self._managers.ask, self._hosts[0], question, CommandRecord)
            try:
                asked.result(SOON)
                self.issued.append(number)
            except (EncampError, TimeoutError):
                self._hosts.reverse()
            time.sleep(0.02)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._asking.shutdown()


def issue(managers: Pair, host: str, name: str, **arguments: str) -> str:
    question = IssueCommand(hosts=("node1",), name=name, arguments=dict(arguments))
    (record,) = managers.ask(host, question, CommandRecord)
    return str(record.id)


def finished(managers: Pair, host: str) -> dict[str, CommandRecord]:
    """Every command that was ever issued, once all are over."""

    def all_over() -> dict[str, CommandRecord] | None:
        records = managers.ask(host, AskCommands(last=100_000), CommandRecord)
        if any(record.state not in OVER for record in records):
            return None
        return {str(record.arguments.get("number", record.id)): record for record in records}

    found: dict[str, CommandRecord] = managers.site.wait_for("the end of all commands", all_over)
    return found


@contextmanager
def counting(managers: Pair, leader: str) -> Iterator[None]:
    """A command that prints all the while; afterwards all of it is there, once."""
    enough = managers.begun.with_name("begun.enough")
    enough.unlink(missing_ok=True)
    before = managers.ran().count("count")
    command = issue(managers, leader, "program.count")
    try:
        yield
    finally:
        enough.touch()
    leader = managers.leader()
    parts = managers.ask(leader, FollowCommands(offsets={command: 0}), Output, CommandRecord)
    *outputs, record = parts
    assert record.state is CommandState.DONE, record.reason
    lines = b"".join(output.piece for output in outputs).decode().splitlines()
    assert lines == [f"line {number}" for number in range(1, len(lines) + 1)]
    assert managers.ran().count("count") == before + 1


def check(managers: Pair, leader: str, load: Load) -> None:
    """What was acknowledged was done, and nothing twice; and the host was there all the time."""
    assert load.issued
    events = managers.ask(leader, AskEvents(), Event)
    assert [event for event in events if event.kind is EventKind.HOST_LOST] == []
    records = finished(managers, leader)
    lost = [number for number in load.issued if number not in records]
    assert not lost
    states = {records[number].state for number in load.issued}
    assert states == {CommandState.DONE}
    ran = [line for line in managers.ran() if line.startswith("task-")]
    assert len(ran) == len(set(ran))
    assert set(load.issued) <= set(ran)
    managers.begun.unlink()


def test_of_two_that_start_at_once_one_leads_and_the_other_says_so(managers: Pair) -> None:
    leader, other = managers.settled()
    found, seen = managers.status(leader), managers.status(other)
    assert found is not None
    assert seen is not None
    assert seen.leadership.epoch == found.leadership.epoch
    assert seen.leadership.leader == found.leadership.leader
    environment = managers.daemon(other).environment
    shown = subprocess.run(
        [ENCAMP, "status"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert f"{leader} since" in shown
    assert "this one stands by" in shown


def test_what_is_asked_of_the_one_that_stands_by_is_answered_by_the_one_that_leads(
    managers: Pair,
) -> None:
    leader, other = managers.settled()
    assert managers.ask(other, AskHosts(), Host) == managers.ask(leader, AskHosts(), Host)
    with pytest.raises(EncampError, match="There is no command 'nonsense'") as caught:
        managers.ask(other, AskCommands(id="nonsense"), CommandRecord)
    assert caught.value.code is Code.USAGE
    # As one stream, though it is longer than a piece of it that travels.
    command = issue(managers, other, "program.much")
    *outputs, record = managers.ask(
        other, FollowCommands(offsets={command: 0}), Output, CommandRecord
    )
    assert record.issuer == "root"
    assert b"".join(output.piece for output in outputs) == b"x" * MUCH


def test_the_death_of_the_leader_under_load_loses_nothing(managers: Pair) -> None:
    leader, other = managers.settled()
    with counting(managers, leader), Load(managers) as load:
        managers.site.wait_for("some commands", lambda: len(load.issued) > 20)
        managers.daemon(leader).kill()
        before = len(load.issued)
        managers.site.wait_for("commands again", lambda: len(load.issued) > before + 20)
        assert managers.leads(other)
    check(managers, managers.leader(), load)
    managers.site.start(leader)
    assert managers.settled() == (other, leader)


class Caller:
    """Somebody who calls at a port again and again."""

    def __init__(self, path: str) -> None:
        self.answers: list[int] = []
        """Status codes; 0: nobody was there."""
        self._url = f"http://{ADDRESS}{path}"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on)

    def _go_on(self) -> None:
        while not self._over.wait(0.02):
            try:
                self.answers.append(httpx.get(self._url, timeout=60).status_code)
            except httpx.TransportError:
                self.answers.append(0)

    def __enter__(self) -> Caller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def test_the_port_of_one_that_takes_over_stays_open(managers: Pair) -> None:
    managers.have_lead("first")
    with Caller("/health/ready") as caller:
        managers.site.wait_for("an answer", lambda: caller.answers)
        managers.daemon("first").kill()
        managers.site.wait_for("its leading", lambda: caller.answers[-1] == 200)
    assert set(caller.answers) == {503, 200}
    assert caller.answers == sorted(caller.answers, reverse=True)
    managers.site.start("first")
    managers.settled()


def test_a_leader_that_is_cut_off_from_the_store_alone_refuses_soon_what_it_was_asked(
    managers: Pair, laid: Cable, postgres: PostgreSQL
) -> None:
    managers.have_lead("first")

    rule = ["ipproto", "tcp", "dport", str(postgres.port), "blackhole"]

    def route(what: str) -> None:
        words = ["ip", "-n", laid.namespace, "rule", what, *rule]
        subprocess.run(words, check=True, capture_output=True)

    route("add")
    try:
        # Not that the database does not answer, as one that is alone says half a minute later.
        with pytest.raises(EncampError, match="and another manager stands by"):
            issue(managers, "first", "program.task", number="in-vain")
        managers.site.wait_for("the other", lambda: managers.leads("second"))
    finally:
        route("del")
    managers.settled()


def test_jobs_go_on_under_the_next_leader_and_none_runs_twice(managers: Pair) -> None:
    leader, other = managers.settled()
    shared = managers.site.root / "shared"
    shared.mkdir()

    def words(number: int, *options: str) -> list[str]:
        """One runs, and others wait, however much room there is."""
        wanted = ("--share", f"{shared}:/shared", "--requirements", "host.machines_here < 1")
        go = "until test -e /shared/go; do sleep 0.1; done"
        script = f"echo {number} >> /shared/ran; {go}; echo {number}; exit {number}"
        return ["run", *options, *wanted, "--", "sh", "-c", script]

    attached = subprocess.Popen(
        [ENCAMP, *words(7)],
        env={**os.environ, **managers.site.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        managers.site.wait_for("the first job", (shared / "ran").exists)
        jobs = [managers.site(*words(1, "--detach")).stdout.strip()]
        managers.daemon(leader).kill()
        assert managers.leader() == other
        jobs.append(managers.site(*words(2, "--detach")).stdout.strip())
        # Who began at the door of the former goes on there.
        managers.site.start(leader)
        assert managers.settled() == (other, leader)
        (shared / "go").touch()
        printed, complaints = attached.communicate(timeout=60)
    finally:
        attached.kill()
        attached.wait()
    assert (printed, attached.returncode) == (b"7\n", 7), complaints.decode()

    def over() -> bool:
        found = managers.ask(other, AskRequests(), RequestRecord)
        return {one.request.id for one in found if one.state is RequestState.DONE} >= set(jobs)

    managers.site.wait_for("the end of all jobs", over)
    assert sorted((shared / "ran").read_text().split()) == ["1", "2", "7"]


def test_a_leader_that_was_stuck_stands_by_when_it_goes_on(managers: Pair) -> None:
    leader, other = managers.settled()
    with counting(managers, leader), Load(managers) as load:
        managers.site.wait_for("some commands", lambda: len(load.issued) > 20)
        managers.look_at(other)
        managers.daemon(leader).signal(signal.SIGSTOP)
        try:
            # At the door of the one that stands by, which becomes that of the next leader.
            job = managers.site("run", "--detach", "--", "true").stdout.strip()
            assert managers.leads(other)
            managers.site("wait", job)
            jobs = managers.ask(other, AskRequests(), RequestRecord)
            assert [one.request.id for one in jobs].count(job) == 1
            before = len(load.issued)
            managers.site.wait_for("commands again", lambda: len(load.issued) > before + 20)
        finally:
            managers.daemon(leader).signal(signal.SIGCONT)
        managers.site.wait_for("it stands by", lambda: managers.stands_by(leader))
        assert managers.leads(other)
    check(managers, managers.leader(), load)
    assert managers.settled() == (other, leader)


def test_the_death_of_the_database_under_load_loses_nothing(
    managers: Pair, postgres: PostgreSQL
) -> None:
    leader, _ = managers.settled()
    with counting(managers, leader), Load(managers) as load:
        managers.site.wait_for("some commands", lambda: len(load.issued) > 20)
        postgres.kill()
        postgres.start()
        before = len(load.issued)
        managers.site.wait_for("commands again", lambda: len(load.issued) > before + 20)
    check(managers, managers.leader(), load)


def test_a_leader_that_is_stopped_hands_over_at_once(managers: Pair) -> None:
    leader, other = managers.settled()
    with counting(managers, leader), Load(managers) as load:
        managers.site.wait_for("some commands", lambda: len(load.issued) > 20)
        assert managers.daemon(leader).stop() == 0
        before = len(load.issued)
        managers.site.wait_for("commands again", lambda: len(load.issued) > before + 20)
    check(managers, managers.leader(), load)
    managers.site.start(leader)
    assert managers.settled() == (other, leader)


def test_a_leader_that_is_cut_off_stops_deciding_and_the_other_goes_on(
    managers: Pair, laid: Cable
) -> None:
    managers.have_lead("first")
    epoch = managers.epoch("first")
    with counting(managers, "first"), Load(managers) as load:
        managers.site.wait_for("some commands", lambda: len(load.issued) > 20)
        laid.cut()
        managers.site.wait_for("the other", lambda: managers.leads("second"))
        # By itself: nobody can tell it.
        assert not managers.leads("first")
        before = len(load.issued)
        managers.site.wait_for("commands again", lambda: len(load.issued) > before + 20)
        with pytest.raises(EncampError, match=r"waits for its store|stands by"):
            issue(managers, "first", "program.task", number="cut-off")
        laid.mend()
        managers.site.wait_for("what it hears", lambda: managers.epoch("first") > epoch)
        assert managers.stands_by("first")
    check(managers, managers.leader(), load)
    assert managers.settled() == ("second", "first")
    assert managers.epoch("first") == managers.epoch("second")


def test_a_leader_that_cannot_reach_the_bus_hands_over_to_one_that_can(
    managers: Pair, laid: Cable, postgres: PostgreSQL, database: str
) -> None:
    managers.daemon("first").stop()
    # By a socket it reaches the database, cable or not.
    beside = postgres.socket_url(database.rsplit("/", 1)[1])
    described = managers.site.root / "first-config" / "site.yaml"
    described.write_text(described.read_text().replace(database, beside))
    managers.site.start("first")
    managers.have_lead("first")
    with counting(managers, "first"):
        laid.cut()
        managers.site.wait_for("the other", lambda: managers.leads("second"))
        managers.site.wait_for("its standing by", lambda: managers.stands_by("first"))
        [seen] = managers.site.wait_for(
            "what keeps it from leading",
            lambda: (
                (found := managers.status("second"))
                and [one for one in found.leadership.standing_by if one.trouble]
            ),
        )
        assert "No server of the bus answers" in seen.trouble
    laid.mend()
    assert managers.settled() == ("second", "first")


def test_hosts_keep_their_groups_under_a_manager_that_never_had_the_list(managers: Pair) -> None:
    """It was set up before they were added; and where they are added need not be the leader's."""
    managers.have_lead("second")
    site = managers.site

    def on(host: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The command line on the host of a manager."""
        environment = managers.daemon(host).environment
        names = ("ENCAMP_HOME", "ENCAMP_SITE_CONFIG")
        return site(*words, check=check, **{name: environment[name] for name in names})

    def groups() -> tuple[str, ...]:
        site.wait_for_hosts("node2")
        found: tuple[str, ...] = site.hosts()["node2"]["groups"]
        return found

    for name in ("keys.json", "members.json"):
        (site.root / "second-config" / name).unlink()
    secret = on("first", "site", "add", "node2", "--group", "blue").stdout
    site.join_agent("node2", secret)
    site.start("node2")
    try:
        assert groups() == ("blue",)
        # Whoever leads, on both hosts the same is known.
        assert "node2" in on("second", "site", "ls").stdout
        managers.have_lead("first")
        assert groups() == ("blue",)
        assert "node2" in on("second", "site", "ls").stdout
        refused = on("second", "site", "add", "node3", check=False)
        assert "there is no keys.json" in refused.stderr
        managers.have_lead("second")
        assert groups() == ("blue",)
        removed = on("first", "site", "remove", "node2")
        assert "Copy it there" in removed.stderr
        assert "node2" not in on("second", "site", "ls").stdout
    finally:
        site.daemons.pop("node2").end()


def test_epochs_only_grow_and_no_event_is_told_twice(managers: Pair) -> None:
    leader, other = managers.settled()
    numbers = [event["number"] for event in managers.site.events()]
    assert numbers == sorted(set(numbers))
    assert managers.site.events("manager started")
    assert managers.daemon(other).stop() == 0
    managers.site.wait_for(
        "its leave",
        lambda: (found := managers.status(leader)) and not found.leadership.standing_by,
    )
