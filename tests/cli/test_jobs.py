"""Jobs of a site, as people ask for them and are told about them."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from encamp.cli import requests
from encamp.cli import site_door as doors
from encamp.cli.main import run_command
from encamp.door import questions
from encamp.door.peer import Peer
from encamp.model.errors import Code, EncampError
from encamp.model.job import Command, Copy, Job, MachineRequest, User
from encamp.model.request import (
    NOT_YET,
    Cause,
    Explanation,
    HostReason,
    Part,
    PartState,
    Reason,
    Request,
    RequestRecord,
    RequestState,
    Together,
)
from encamp.model.size import Size
from tests.cli.sample_manager import Answering, answered
from tests.cli.sample_site import ESCAPE, Site

Ask = Callable[..., tuple[int, str, str]]
"""Runs a command line: its exit code, and what it printed on both streams."""

ANN = User(name="ann", uid=1001, gid=1001, group="ann", groups=(1001,), home="/home/ann")


def record(
    id: str,
    state: RequestState = RequestState.WAITING,
    *,
    words: tuple[str, ...] = ("true",),
    detached: bool = True,
    reason: str = "",
    exit_code: int | None = None,
    hosts: tuple[str, ...] = (),
) -> RequestRecord:
    machine = MachineRequest(environment="mini", owner=ANN)
    job = Job(machine=machine, command=Command(arguments=words)) if words else None
    return RequestRecord(
        request=Request(
            id=id * 32,
            owner="ann",
            submitted=time.time() - 90,
            environment="mini",
            size=Size(1, 128 << 20),
            job=job,
            machine=machine,
            detached=detached,
        ),
        state=state,
        reason=Reason(sentence=reason),
        changed=time.time() - 90,
        parts=tuple(
            Part(number=number, host=host, state=PartState.RUNNING)
            for number, host in enumerate(hosts)
        ),
        exit_code=exit_code,
    )


WAITING = record("a", reason=f"no host has room: 12 {ESCAPE} are full")
RUNNING = record("b", RequestState.RUNNING, hosts=("node01",), words=("echo", ESCAPE))
DONE = record("c", RequestState.DONE, exit_code=3, hosts=("node02",))
FAILED = record("d", RequestState.FAILED, reason="node01: the disk is full")
CANCELLED = record("e", RequestState.CANCELLED, reason="ann wanted it to end")
LOST = record("f", RequestState.LOST, reason="node03 is gone")
MACHINE = record("1", RequestState.RUNNING, words=(), hosts=("node01",))
ATTACHED = record("2", RequestState.RUNNING, detached=False, hosts=("node01",))


def test_only_who_waits_for_a_reason_is_told_of_it() -> None:
    """What comes before every job is worth a word only to somebody who was told that it waits."""
    said: list[str] = []

    class Said:
        def update(self, what: str, fraction: float | None = None) -> None:
            said.append(what)

    def told(waited: bool, state: RequestState, **reason: Any) -> bool:
        one = msgspec.structs.replace(record("a", state), reason=Reason(**reason))
        return requests.tell(one, Said(), waited=waited)

    waiting, start = RequestState.WAITING, RequestState.STARTING
    assert told(False, waiting, cause=Cause.BEHIND, sentence=NOT_YET) is False
    assert told(False, RequestState.CLAIMING, cause=Cause.CLAIM, sentence="reserving") is False
    assert told(False, start, cause=Cause.START, sentence="its machine is being made") is False
    assert said == []
    assert told(False, waiting, cause=Cause.NO_ROOM, sentence="vm is full", next="Soon.") is True
    assert told(True, start, cause=Cause.START, sentence="its machine is being made") is True
    assert said == ["aaaaaaaa waits: vm is full. Soon.", "aaaaaaaa: its machine is being made"]


MANY = Explanation(
    kind="job",
    id="a" * 32,
    name="analysis",
    state="waiting",
    reason=Reason(
        cause=Cause.LIMIT,
        sentence="ann may have 4 machines at a time",
        since=time.time() - 300,
        limit="four each",
        next="it goes on when one of them has ended",
    ),
    position=7,
    hosts=(
        *(HostReason(host=f"n{n}", cause=Cause.NO_ROOM, sentence=f"{n} MiB") for n in range(30)),
        HostReason(host="odd", cause=Cause.REQUIREMENTS, sentence="host.gpus >= 1 is not so"),
    ),
    history=(f"10:00 ann asked for it {ESCAPE}",),
)


class Queue(Answering):
    """A manager with some requests; those that are handed in wait."""

    def __init__(self) -> None:
        super().__init__(Site(time.time()))
        self.records = [WAITING, RUNNING, DONE, FAILED, CANCELLED, LOST, MACHINE, ATTACHED]

    async def _items(self, peer: Peer, question: questions.Question) -> list[msgspec.Struct]:
        match question:
            case questions.Submit():
                made = msgspec.structs.replace(question.request, id="9" * 32, owner=peer.user)
                return [RequestRecord(request=made)]
            case questions.AskRequests(id=""):
                over = (RequestState.DONE, RequestState.FAILED)
                return [r for r in self.records if not question.under_way or r.state not in over]
            case questions.AskRequests() | questions.EndRequest() | questions.FollowRequest():
                return [self._find(question.id)]
            case questions.AskWhy():
                return [MANY]
            case questions.MoveMachine(machine="work"):
                name = "test.fail" if question.move is questions.Move.PAUSE else "machine.move"
                return self._issue(peer, questions.IssueCommand(hosts=("node02",), name=name))
            case questions.MoveMachine():
                raise EncampError(Code.UNKNOWN_MACHINE, "You have no such machine on this site.")
        return await super()._items(peer, question)

    def _find(self, id: str) -> RequestRecord:
        for one in self.records:
            if one.request.id.startswith(id):
                return one
        raise EncampError(Code.USAGE, f"There is no job '{id}'.", "'encamp jobs' lists them.")


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    monkeypatch.setenv("ENCAMP_DOOR", str(tmp_path / "door.sock"))
    monkeypatch.setenv("ENCAMP_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path / "etc"))
    monkeypatch.setenv("ENCAMP_DEBUG", "1")
    made = Queue()
    with answered(tmp_path / "door.sock", made):
        yield made


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    def run(*words: str) -> tuple[int, str, str]:
        code = run_command(list(words))
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.mark.parametrize("words", [("logs",), ("wait",), ("fetch",), ("exec",)])
def test_what_has_no_name_is_nothing(queue: Queue, ask: Ask, words: tuple[str, ...]) -> None:
    """And not the latest of all."""
    code, out, err = ask(*words, "", *(["--", "true"] if words == ("exec",) else []))
    assert code in (Code.USAGE.value, Code.UNKNOWN_MACHINE.value)
    assert (out, queue.asked) == ("", [])
    assert err.startswith("encamp: There is no ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--memory", "9" * 30 + "G"), "more than there is anywhere"),
        (("--memory", "9" * 400), "more than there is anywhere"),
        (("--cpus", "9" * 30), "A number is larger than anything that can be sent"),
        (("--network", "carrier"), "no network 'carrier'"),
        (("-w", "here"), "not an absolute path"),
    ],
)
def test_what_makes_no_sense_is_refused_here(
    queue: Queue, ask: Ask, words: tuple[str, ...], said: str
) -> None:
    code, _, err = ask("run", *words, "--", "true")
    assert code == Code.USAGE.value
    assert said in err
    assert not any(isinstance(one, questions.Submit) for one in queue.asked)


@pytest.mark.parametrize("word", ["", "\udcff"])
def test_what_no_system_takes_is_refused_here(queue: Queue, ask: Ask, word: str) -> None:
    code, _, err = ask("run", "--", word)
    assert code == Code.USAGE.value
    assert "nothing to run" in err or "no text in UTF-8" in err
    assert ask("why", "\udcff")[0] == Code.USAGE.value
    assert queue.asked == []


# ── asking for something ─────────────────────────────────────────────────────────────────────────


def test_all_that_can_be_wished_reaches_the_manager(
    queue: Queue, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wishes = "--count 3 --rank spread --priority 5 --label mine --near a --near b --away c"
    more = "--together one-host --retries 2 --memory 1G --out r --out s:there/ --out t:./u"
    code, out, _ = ask(
        *("run", "--detach", "--requirements", "host.cpus > 2"),
        *(*wishes.split(), *more.split(), "--", "echo", "hello"),
    )
    assert (code, out) == (0, "9" * 32 + "\n")
    [asked] = queue.asked
    assert isinstance(asked, questions.Submit)
    request = asked.request
    assert (request.count, request.rank, request.priority) == (3, "spread", 5)
    assert (request.label, request.near, request.away) == ("mine", ("a", "b"), ("c",))
    assert (request.together, request.retries) == (Together.ONE_HOST, 2)
    assert (request.requirements, request.detached) == ("host.cpus > 2", True)
    assert request.machine.memory == 1 << 30
    assert request.job is not None
    assert request.job.command.arguments == ("echo", "hello")
    # Whoever fetches them may be elsewhere.
    assert request.job.outputs == (
        Copy("r", f"{tmp_path}/"),
        Copy("s", f"{tmp_path}/there/"),
        Copy("t", f"{tmp_path}/u"),
    )


def test_directory_that_is_shared_is_one_of_this_host(queue: Queue, ask: Ask) -> None:
    ask("run", "--detach", "--share", "/tmp", "--", "true")
    here = f"host.name == '{os.uname().nodename}'"
    ask("run", "--detach", "--share", "/tmp", "--requirements", "a or b", "--", "true")
    first, second = [one.request for one in queue.asked if isinstance(one, questions.Submit)]
    assert first.requirements == here
    assert second.requirements == f"(a or b) and {here}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--detach", "-t", "--", "sh"], "no terminal"),
        (["run", "--count", "2", "-t", "--", "sh"], "no terminal"),
        (["run", "--count", "2", "--name", "n", "--", "sh"], "one name"),
        (["run", "--together", "heap", "--", "sh"], "one-host"),
        (["run", "--in", "/not/there", "--", "sh"], "does not exist"),
    ],
)
def test_what_makes_no_sense_is_not_even_asked(
    queue: Queue, ask: Ask, words: list[str], said: str
) -> None:
    code, _, error = ask(*words)
    assert code in (64, 66)
    assert said in error
    assert queue.asked == []


def test_refusal_tells_how_to_do_without_the_site(queue: Queue, ask: Ask) -> None:
    queue.refusal = EncampError(Code.NOT_PERMITTED, "You may not.")
    code, _, error = ask("run", "--", "true")
    assert code == 77
    assert "--local" in error


def test_alone_there_is_nobody_to_grant_wishes(
    queue: Queue, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, error = ask("run", "--local", "--count", "2", "--", "true")
    assert code == 64
    assert "--count is a matter of a site, and --local does without" in error
    assert "serve" not in error
    monkeypatch.delenv("ENCAMP_DOOR")
    for wish in (["--detach"], ["--rank", "pack"], ["--near", "x"], ["--priority", "2"]):
        code, _, error = ask("run", *wish, "--", "true")
        assert (code, wish[0] in error) == (64, True)
    assert queue.asked == []


# ── is there a site? ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host without any site."""
    monkeypatch.delenv("ENCAMP_DOOR", raising=False)
    monkeypatch.delenv("ENCAMP_HOME", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path / "etc"))
    monkeypatch.setenv("ENCAMP_USER_CONFIG", str(tmp_path / "etc"))
    monkeypatch.setattr(doors, "SYSTEM_HOME", tmp_path / "system")
    monkeypatch.setattr("encamp.home.SYSTEM_HOME", tmp_path / "system")
    return tmp_path


def make_door(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    return path


def test_without_a_door_one_works_alone(nowhere: Path) -> None:
    assert doors.site_door() is None
    (nowhere / "system").mkdir()
    (nowhere / "system" / "manager.sock").write_text("no socket")
    assert doors.site_door() is None


def test_door_of_the_system_is_everybodys(nowhere: Path) -> None:
    made = make_door(nowhere / "system" / "manager.sock")
    assert doors.site_door() == made
    assert doors.site_door(local=True) is None


def test_home_of_ones_own_has_a_site_of_its_own_or_none(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_door(nowhere / "system" / "manager.sock")
    monkeypatch.setenv("ENCAMP_HOME", str(nowhere / "home"))
    assert doors.site_door() is None
    made = make_door(nowhere / "home" / "manager.sock")
    assert doors.site_door() == made


def test_door_can_be_anywhere(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = make_door(nowhere / "elsewhere")
    (nowhere / "etc").mkdir()
    (nowhere / "etc" / "site.yaml").write_text(f"door: {elsewhere}\n")
    assert doors.site_door() == elsewhere
    monkeypatch.setenv("ENCAMP_DOOR", str(nowhere / "nobody-there"))
    # Who names it wants it; that nobody answers is said then.
    assert doors.site_door() == nowhere / "nobody-there"


# ── looking ──────────────────────────────────────────────────────────────────────────────────────


def test_jobs_are_listed_with_their_reasons(queue: Queue, ask: Ask) -> None:
    code, out, _ = ask("jobs")
    assert code == 0
    assert queue.asked == [questions.AskRequests(under_way=True, last=101)]
    lines = out.splitlines()
    for wanted in ("aaaaaaaa", "ann", "mini", "waiting", "no host has room", "1m"):
        assert any(wanted in line for line in lines if "aaaaaaaa" in line or wanted in line)
    assert "node01" in next(line for line in lines if "bbbbbbbb" in line)
    assert "cccccccc" not in out
    assert ESCAPE not in out
    assert "\x1b" not in out


def test_that_there_are_more_jobs_than_are_listed_is_said(queue: Queue, ask: Ask) -> None:
    code, out, error = ask("jobs", "--all", "--last", "1", "--json")
    assert code == 0
    assert len(json.loads(out)) == 1
    assert error == "encamp: There are more than the latest 1: --last N lists more of them.\n"
    assert ask("jobs", "--all")[2] == ""


def test_jobs_that_are_over_are_listed_if_wanted(queue: Queue, ask: Ask) -> None:
    _, out, _ = ask("jobs", "--all")
    assert "done (3)" in next(line for line in out.splitlines() if "cccccccc" in line)
    _, out, _ = ask("jobs", "--all", "--json")
    assert [entry["state"] for entry in json.loads(out)][:3] == ["waiting", "running", "done"]
    queue.records.clear()
    assert "--all" in ask("jobs")[1]


@pytest.mark.parametrize(
    ("ids", "code", "said"),
    [
        (["c"], 3, ""),
        (["d"], 84, "the disk is full"),
        (["e"], 79, "was cancelled"),
        (["f"], 81, "node03 is gone"),
        (["c", "d"], 84, "the disk is full"),
        (["zzz"], 64, "There is no job 'zzz'"),
    ],
)
def test_waiting_ends_with_the_exit_code(
    queue: Queue, ask: Ask, ids: list[str], code: int, said: str
) -> None:
    found, out, error = ask("wait", *ids)
    assert (found, out) == (code, "")
    assert said in error


def test_one_that_cannot_be_cancelled_does_not_save_the_others(queue: Queue, ask: Ask) -> None:
    code, out, error = ask("cancel", "a", "zzz", "b")
    assert code == 64
    assert sorted(out.split()) == ["a" * 32, "b" * 32]
    assert "zzz" in error


@pytest.mark.parametrize(("id", "said"), [("1", "is a machine"), ("2", "--detach")])
def test_what_has_no_log_says_so(queue: Queue, ask: Ask, id: str, said: str) -> None:
    code, out, error = ask("logs", id)
    assert code in (64, 79)
    assert out == ""
    assert said in error


def test_job_without_files_has_none_to_fetch(queue: Queue, ask: Ask) -> None:
    code, _, error = ask("fetch", "c")
    assert code == 64
    assert "--out" in error


def test_files_of_others_do_not_go_where_those_say(queue: Queue, ask: Ask, tmp_path: Path) -> None:
    """An administrator can write where their owner could not."""
    assert DONE.request.job is not None
    job = msgspec.structs.replace(DONE.request.job, outputs=(Copy("x", str(tmp_path / "planted")),))
    theirs = msgspec.structs.replace(DONE.request, id="7" * 32, owner="mallory", job=job)
    queue.records.append(msgspec.structs.replace(DONE, request=theirs))
    code, _, error = ask("fetch", "777")
    assert code == Code.NOT_PERMITTED.value
    assert "--to" in error
    code, _, error = ask("fetch", "777", "--to", str(tmp_path))
    assert code != Code.NOT_PERMITTED.value


def test_why_tells_the_reason_the_limit_and_what_is_next(queue: Queue, ask: Ask) -> None:
    code, out, _ = ask("why", "analysis", "--hosts", "50")
    assert code == 0
    assert queue.asked == [questions.AskWhy(id="analysis", hosts=50)]
    for wanted in (
        *("ann may have 4 machines at a time", "m ago", "four each", "it goes on when", "7"),
        *("host.gpus >= 1 is not so", "10:00 ann asked for it"),
    ):
        assert wanted in out
    # Thirty hosts have the same reason.
    assert any("30" in line and "n0, n1, n2 and 27 more" in line for line in out.splitlines())
    assert "n17" not in out
    assert "\x1b" not in out
    assert json.loads(ask("why", "a", "--json")[1])["reason"]["limit"] == "four each"


# ── machines that stay ───────────────────────────────────────────────────────────────────────────


def test_machines_of_the_site_are_moved_where_they_are(queue: Queue, ask: Ask) -> None:
    code, out, err = ask("rm", "--force", "work", "other")
    assert (code, out) == (Code.UNKNOWN_MACHINE.value, "work\n")
    assert "You have no such machine on this site." in err
    moves = [one for one in queue.asked if isinstance(one, questions.MoveMachine)]
    assert [(one.machine, one.move, one.force) for one in moves] == [
        ("work", questions.Move.REMOVE, True),
        ("other", questions.Move.REMOVE, True),
    ]
    code, out, err = ask("pause", "work")
    assert (code, out) == (Code.COMMAND_FAILED.value, "")
    assert "test.fail on node02 failed" in err


def test_ones_own_machines_of_the_site_are_listed_and_without_a_manager_those_of_this_host(
    queue: Queue, ask: Ask
) -> None:
    code, out, _ = ask("ps")
    assert code == 0
    assert questions.AskMachines(mine=True) in queue.asked
    assert queue.site.machines[0].machine.id[:8] in out
    queue.refusal = EncampError(Code.UNREACHABLE, "Nobody leads.")
    code, out, err = ask("ps")
    assert code == 0
    assert queue.site.machines[0].machine.id[:8] not in out
    assert "Only those of this host: Nobody leads." in err
