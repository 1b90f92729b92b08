"""What Slurm's commands say, read strictly."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from encamp.batch.slurm.ancestry import step_by
from encamp.batch.slurm.calls import Calls, meant, patiently
from encamp.batch.slurm.gathering import Gathered
from encamp.batch.slurm.hostlist import expand
from encamp.batch.slurm.node import bait_of, is_ours, plain, with_mark
from encamp.batch.slurm.queue import FIELDS, Entry, amount, entries, new_word
from encamp.batch.slurm.tasks import tasks_here
from encamp.model.batch import BaitState
from encamp.model.errors import Code, EncampError
from encamp.model.size import MIB

VALUES = {
    "number": "17",
    "id": "17",
    "uid": "1000",
    "gid": "1000",
    "state": "RUNNING",
    "status": "0",
    "reason": "None",
    "queue": "main",
    "account": "(null)",
    "cpus": "2",
    "nodes": "n[1-2]",
    "asked_memory": "300M",
    "granted": "cpu=2,mem=600M,node=2,billing=2",
    "restarts": "1",
    "requeue": "1",
    "batch": "1",
    "features": "(null)",
    "submitted": "1700000000",
    "eligible": "N/A",
    "dependency": "(null)",
    "comment": "(null)",
    "admin_comment": "(null)",
    "name": "job",
}


def said(word: str, **changes: str) -> str:
    return word.join((VALUES | changes)[name] for name in FIELDS) + word + "\n"


def entry(**changes: str) -> Entry:
    word = new_word()
    (found,) = entries(said(word, **changes), word)
    return found


@pytest.mark.parametrize(
    ("said", "status"), [("0", 0), ("9", 9), ("768", 768), ("0:0", 0), ("0:9", 9), ("3:0", 768)]
)
def test_all_releases_tell_how_a_job_ended(said: str, status: int) -> None:
    assert entry(status=said).status == status


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ("n1",)),
        ("n[1-3,7],login", ("n1", "n2", "n3", "n7", "login")),
        ("rack[1-2]n[08-10]", tuple(f"rack{r}n{n}" for r in "12" for n in ("08", "09", "10"))),
        ("a1,b[2]", ("a1", "b2")),
    ],
)
def test_lists_of_nodes_are_written_out(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["n[1-", "n[a]", "n[1-9999999999]", "n[1-2", "n1,,n2", "n[1--2]"])
def test_what_is_no_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(EncampError, match="no list of Slurm nodes"):
        expand(text)


def test_a_job_is_read_from_what_squeue_says() -> None:
    found = entry()
    assert (found.number, found.uid, found.hosts) == ("17", 1000, ("n1", "n2"))
    assert (found.reason, found.account, found.eligible) == ("", "", None)
    assert found.granted_memory == 600 * MIB
    assert found.memory_for(4) == 300 * MIB
    assert entry(asked_memory="100Mc").memory_for(4) == 400 * MIB
    assert entry(asked_memory="0", granted="cpu=2").granted_memory is None


def test_whatever_is_in_a_text_ends_no_field() -> None:
    lies = "x\n18|0|RUNNING\0 env:mini x0123456789abcdefx"
    found = entry(name=lies, comment=lies, account=lies)
    assert (found.name, found.comment, found.account, found.uid) == (lies, lies, lies, 1000)


def test_complaints_before_a_line_do_no_harm() -> None:
    word = new_word()
    text = "squeue: error: something\n" + said(word) + said(word, number="18", id="18")
    assert [one.number for one in entries(text, word)] == ["17", "18"]
    assert entries("", word) == []


@pytest.mark.parametrize("changes", [{"uid": "root"}, {"cpus": ""}, {"submitted": "yesterday"}])
def test_a_job_that_makes_no_sense_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(EncampError, match="does not understand"):
        entry(**changes)
    with pytest.raises(EncampError, match="does not understand"):
        entries("half a line", new_word())


@pytest.mark.parametrize(
    ("id", "tasks"),
    [("17", 1), ("17_3", 1), ("17_[1-10:3,50%2]", 5), ("17_[5,7,9%2]", 3), ("17_[0-99]", 100)],
)
def test_tasks_that_wait_are_counted(id: str, tasks: int) -> None:
    assert entry(id=id).tasks == tasks


def test_amounts_are_bytes() -> None:
    assert [amount(text) for text in ("0", "1500M", "1.5G", "2T")] == [
        0,
        1500 * MIB,
        1536 * MIB,
        2 * 1024 * 1024 * MIB,
    ]
    with pytest.raises(EncampError):
        amount("much")


def test_tasks_on_a_node_are_those_of_its_place_in_the_list() -> None:
    def count(text: str, node: str) -> int:
        return tasks_here({"SLURM_STEP_TASKS_PER_NODE": text, "SLURM_NODEID": node})

    assert [count("2(x3),1", str(node)) for node in range(5)] == [2, 2, 2, 1, 1]
    assert count("many", "0") == count("", "x") == count("9999999", "0") == 1


def test_a_reason_is_ours_only_as_we_wrote_it() -> None:
    reason = with_mark("no memory")
    assert is_ours(reason)
    for other in ("", "encamp: no memory", reason + "!", "x" + reason, reason.replace("no", "No")):
        assert not is_ours(other)
    assert plain('a "b"\n[c] ü' + "x" * 500).startswith("a 'b' (c) ?")
    assert len(plain("x" * 500)) == 200


@pytest.mark.parametrize(
    ("state", "reason", "bait"),
    [
        ("IDLE", "", BaitState.OPEN),
        ("MIXED+NOT_RESPONDING", "", BaitState.OPEN),
        ("IDLE+DRAIN", with_mark("full"), BaitState.FULL),
        ("ALLOCATED+DRAIN+NOT_RESPONDING", with_mark("full"), BaitState.FULL),
        ("DOWN+DRAIN", with_mark("full"), BaitState.CLOSED),
        ("IDLE+DRAIN+MAINTENANCE", with_mark("full"), BaitState.CLOSED),
        ("IDLE+DRAIN", "broken", BaitState.CLOSED),
        ("DOWN+NOT_RESPONDING", "Not responding", BaitState.UNKNOWN),
        ("DOWN", "Not my disk", BaitState.CLOSED),
        ("UNKNOWN", "", BaitState.UNKNOWN),
        ("SOMETHING_NEW", "", BaitState.CLOSED),
    ],
)
def test_states_of_nodes_are_ours(state: str, reason: str, bait: BaitState) -> None:
    shown = f" Reason={reason} [root@1700000000]" if reason else ""
    assert bait_of(f"NodeName=n1 OS=Linux State={state} ThreadsPerCore=1{shown}\n").state is bait


def test_what_fails_for_want_of_a_controller_may_work_later() -> None:
    detail = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    error = meant(EncampError(Code.COMMAND_FAILED, "x", detail=detail), "asking")
    assert error is not None
    assert error.transient
    assert error.code is Code.UNREACHABLE
    assert meant(EncampError(Code.COMMAND_FAILED, "x", detail="something else"), "asking") is None
    tries = []

    def attempt() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise EncampError(Code.UNREACHABLE, "no", transient=True)
        return len(tries)

    assert patiently(attempt, 60) == 3
    with pytest.raises(EncampError):
        patiently(lambda: (_ for _ in ()).throw(EncampError(Code.WRONG_STATE, "never")), 60)


def test_without_a_configuration_nothing_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(EncampError, match="There is no") as caught:
        Calls(conf=str(tmp_path / "slurm.conf"))("squeue", purpose="asking")
    assert caught.value.code is Code.CONFIGURATION


def test_a_daemon_of_a_step_is_roots_and_slurms(tmp_path: Path) -> None:
    def process(title: bytes, uid: int, program: str) -> Path:
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        directory.mkdir()
        (directory / "cmdline").write_bytes(title)
        (directory / "status").write_text(f"Name:\tx\nUid:\t{uid}\t0\t0\t0\n")
        (directory / "exe").symlink_to(program)
        return directory

    title, program = b"slurmstepd: [17.batch]\0\0\0", "/usr/sbin/slurmstepd-wlm"
    found = step_by(process(title, 0, program))
    assert found is not None
    assert (found.job, found.name) == ("17", "batch")
    assert step_by(process(title, 0, f"{program} (deleted)")) is not None
    assert step_by(process(title, 1000, program)) is None
    assert step_by(process(title, 0, "/home/eve/slurmstepd.sh")) is None
    assert step_by(process(b"slurmstepd: [17.batch] x\0", 0, program)) is None
    assert step_by(process(b"slurmstepd\0[17.batch]\0", 0, program)) is None


def test_who_asks_while_an_answer_is_on_its_way_is_asked_for_together() -> None:
    asked: list[frozenset[str]] = []
    under_way, go = threading.Event(), threading.Event()

    def ask(keys: frozenset[str]) -> Mapping[str, str]:
        asked.append(keys)
        under_way.set()
        assert go.wait(60)
        return {key: key.upper() for key in keys if key != "nobody"}

    gathered = Gathered(ask)
    answers: dict[str, str | None] = {}

    def wonder(key: str) -> threading.Thread:
        thread = threading.Thread(target=lambda: answers.update({key: gathered(key)}))
        thread.start()
        return thread

    threads = [wonder("a")]
    assert under_way.wait(60)
    threads += [wonder(key) for key in ("b", "c", "nobody")]
    end = time.monotonic() + 60
    while len(gathered._next.keys) < 3 and time.monotonic() < end:
        time.sleep(0.001)
    go.set()
    for thread in threads:
        thread.join()
    assert asked == [{"a"}, {"b", "c", "nobody"}]
    assert answers == {"a": "A", "b": "B", "c": "C", "nobody": None}


def test_a_failure_is_told_to_all_who_asked() -> None:
    def ask(keys: frozenset[str]) -> Mapping[str, str]:
        raise EncampError(Code.UNREACHABLE, "no", transient=True)

    gathered = Gathered(ask)
    for _ in range(2):
        with pytest.raises(EncampError):
            gathered("a")


@pytest.mark.parametrize(("flag", "batch"), [("0", False), ("1", True), ("2", True)])
def test_batch_job_stays_one_however_often_slurm_has_missed_it(flag: str, batch: bool) -> None:
    """Slurm counts how often it has begun one anew that was missing on its node."""
    assert entry(batch=flag).batch is batch
