"""What the command line shows of a site, asked at a real door."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from encamp.cli import asking, standing
from encamp.cli.asking import door
from encamp.cli.commands import understood
from encamp.cli.main import run_command
from encamp.door import questions
from encamp.home import SYSTEM_HOME, Home
from encamp.model.errors import Code, EncampError
from tests.cli.driving import on_terminal
from tests.cli.sample_manager import Answering, answered
from tests.cli.sample_site import ESCAPE, Site

Ask = Callable[..., tuple[int, str, str]]
"""Runs a command line: its exit code, and what it printed on both streams."""


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    monkeypatch.setenv("ENCAMP_DOOR", str(tmp_path / "door.sock"))
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path / "etc"))
    monkeypatch.setenv("ENCAMP_DEBUG", "1")
    with answered(tmp_path / "door.sock", Answering(Site(time.time()))) as manager:
        yield manager


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    def run(*words: str) -> tuple[int, str, str]:
        code = run_command(list(words))
        printed = capfd.readouterr()
        return code, printed.out, printed.err

    return run


def row(text: str, name: str) -> str:
    """The line of a table in which the name stands."""
    return next(line for line in text.splitlines() if name in line.split())


def test_hosts_tell_presence_load_memory_and_what_is_wrong(manager: Answering, ask: Ask) -> None:
    code, out, _ = ask("hosts")
    assert code == 0
    assert "joined" in row(out, "node01")
    assert "15.70 / 16" in row(out, "node01")
    assert "3.1 GiB / 62.8 GiB" in row(out, "node01")
    assert "its clock is 3605 s ahead" in row(out, "node03")
    assert "lost 1m" in row(out, "node05")
    assert "nothing was heard of it for 6 seconds" in row(out, "node05")
    assert "its clock" not in row(out, "node02")
    assert "version" not in out


def test_hosts_on_a_narrow_terminal_are_not_broken_for_the_sake_of_reasons(
    manager: Answering,
) -> None:
    with on_terminal({}, "hosts", rows=24, columns=80) as terminal:
        terminal.wait_for(b"machines")
        terminal.wait_for(b"16    3.1 GiB / 62.8 GiB          2")
        terminal.wait_for(b"lost 1m     workers")
        terminal.wait_for(b"node05: nothing was heard of it for 6 seconds")


@pytest.mark.parametrize("words", [("ps", "--site"), ("trigger", "ls"), ("command", "ls")])
def test_lists_on_a_narrow_terminal_break_no_word(
    manager: Answering, words: tuple[str, ...]
) -> None:
    """What has no room beside stands below, whole."""
    with on_terminal({"NO_COLOR": "1", "TERM": "dumb"}, *words, rows=24, columns=80) as terminal:
        lines = terminal.all().decode().splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    site = manager.site
    expected = {
        "ps": [part for entry in site.machines for part in (entry.machine.name, "2 cpu, 2 GiB")],
        "trigger": [part for view in site.triggers for part in (view.expression, *view.commands)],
        "command": [part for record in site.commands for part in (record.name, record.issuer)],
    }
    for part in expected[words[0]]:
        assert part in text


def test_lists_have_a_line_for_each_where_there_is_room(manager: Answering, ask: Ask) -> None:
    out = ask("ps", "--site")[1]
    assert "2 cpu, 2 GiB" in row(out, "analysis")
    assert "as asked" in row(out, "analysis")


def test_hosts_of_different_versions_tell_them(manager: Answering, ask: Ask) -> None:
    hosts = manager.site.hosts
    hosts[0] = msgspec.structs.replace(hosts[0], version="0.0.9")
    out = ask("hosts")[1]
    assert "0.0.9" in row(out, "head")
    assert "0.1.0" in row(out, "node01")


def test_hosts_that_fit_no_pattern_are_an_error(manager: Answering, ask: Ask) -> None:
    code, out, err = ask("hosts", "nodd*")
    assert (code, out) == (64, "")
    assert "No host of the site fits 'nodd*'" in err
    assert row(ask("hosts", "node0[12]")[1], "node02")


def test_hosts_as_json_tell_everything(manager: Answering, ask: Ask) -> None:
    hosts = json.loads(ask("hosts", "--json")[1])
    assert [host["name"] for host in hosts] == ["head", *(f"node0{i}" for i in range(1, 6))]
    assert hosts[1]["readings"]["load1"]["value"] == 15.7
    assert hosts[1]["commands"][1]["name"] == "agent.ping"


def test_properties_have_units_times_and_reasons(manager: Answering, ask: Ask) -> None:
    code, out, _ = ask("properties", "node01")
    assert code == 0
    assert "3.1 GiB" in row(out, "memory_free")
    assert "94 %" in row(out, "cpu_used")
    assert " 4s " in row(out, "load1")
    assert "no value: its plug-in failed: no such file: /dev/nvidia0" in row(out, "gpus")
    assert "never reported" in row(out, "silent")


def test_ages_are_told_by_the_managers_clock(manager: Answering, ask: Ask) -> None:
    assert " 4s " in row(ask("properties", "node03", "load1")[1], "load1")


def test_terminals_are_told_nothing_by_hosts(manager: Answering, ask: Ask) -> None:
    for words in (["properties", "node01"], ["ps", "--site"], ["top", "--once"]):
        code, out, _ = ask(*words)
        assert code == 0
        assert "\x1b" not in out
    assert ESCAPE.replace("\x1b", "\\x1b") in row(ask("properties", "node01")[1], "kernel")


def test_properties_of_several_hosts_name_them(manager: Answering, ask: Ask) -> None:
    _, out, _ = ask("properties", "node0[12]", "load1", "cpus")
    assert [line.split()[:2] for line in out.splitlines()[2:]] == [
        ["node01", "load1"],
        ["node01", "cpus"],
        ["node02", "load1"],
        ["node02", "cpus"],
    ]


def test_unknown_property_is_refused_with_a_guess(manager: Answering, ask: Ask) -> None:
    code, _, err = ask("properties", "node01", "memory_fre")
    assert code == 64
    assert "Did you mean 'memory_free'?" in err


def test_properties_can_be_read_anew(manager: Answering, ask: Ask) -> None:
    code, out, _ = ask("properties", "node01", "load1", "--refresh", "--timeout", "3", "--json")
    assert code == 0
    assert json.loads(out)["node01"]["load1"]["value"] == 15.7
    assert manager.asked == [
        questions.AskProperties(hosts=("node01",), properties=("load1",), timeout=3.0)
    ]


def test_properties_of_a_lost_host_are_marked(manager: Answering, ask: Ask) -> None:
    assert "node05 is lost: nothing was heard" in ask("properties", "node05")[1]


def test_properties_of_all_hosts_are_shown_if_none_is_named(manager: Answering, ask: Ask) -> None:
    code, out, _ = ask("properties")
    assert code == 0
    assert all(f"node0{number}" in out for number in range(1, 5))


def test_status_is_one_look(manager: Answering, ask: Ask) -> None:
    _, out, _ = ask("status")
    assert "5 joined, 1 lost" in row(out, "hosts")
    assert json.loads(ask("status", "--json")[1])["site"] == "perugia"


def test_machines_of_the_site_and_whether_they_are_known(manager: Answering, ask: Ask) -> None:
    _, out, _ = ask("ps", "--site")
    assert "starting" in row(out, "build-41")
    assert "running?" in row(out, "pilot-9")
    assert "last heard" in out
    machines = json.loads(ask("ps", "--site", "--host", "node02", "--json")[1])
    assert [entry["machine"]["name"] for entry in machines] == ["analysis", "build-41"]


def test_machines_of_hosts_need_a_site(ask: Ask) -> None:
    assert ask("ps", "--host", "node02")[0] == 64


def test_events_come_oldest_first(manager: Answering, ask: Ask) -> None:
    _, out, _ = ask("events", "--last", "3")
    lines = out.splitlines()
    assert len(lines) == 3
    assert "node05 was lost" in lines[0]
    assert "build-41" in lines[2]
    numbers = [json.loads(line)["number"] for line in ask("events", "--json")[1].splitlines()]
    assert numbers == [1, 2, 3, 4, 5, 6, 7]


def test_commands_tell_who_where_when_and_what_came_back(manager: Answering, ask: Ask) -> None:
    _, out, _ = ask("command", "ls")
    assert "trigger:more_workers" in row(out, "machine.start")
    assert "failed" in row(out, "program.tidy")
    assert "program.tidy" not in ask("command", "ls", "--under-way")[1]
    _, out, _ = ask("command", "show", "4f")
    assert "failed: the program ended with 3" in row(out, "state")
    assert "alice" in row(out, "issued")
    assert "3" in row(out, "exit").split()
    assert json.loads(ask("command", "show", "4f", "--json")[1])["exit_code"] == 3
    assert ask("command", "show", "9")[0] == 64


def test_output_of_a_command_is_printed_as_it_was(manager: Answering, ask: Ask) -> None:
    assert ask("command", "output", "4f") == (0, "hello there", "")
    assert ask("command", "output", "4f", "--follow") == (0, "hello there\n", "")


def test_what_hosts_offer_is_told_with_parameters(manager: Answering, ask: Ask) -> None:
    _, out, _ = ask("command", "offered", "node0[12]")
    assert "environment:str [cpus:int]" in row(out, "machine.start")
    assert " all " in row(out, "agent.ping")


def test_command_to_one_host_prints_its_output_and_value(manager: Answering, ask: Ask) -> None:
    words = ("node01", "test.works", "key=a=b", "other=")
    assert ask("command", "send", *words) == (0, 'node01 works\nand is{"on":"node01"}\n', "")
    asked = next(one for one in manager.asked if isinstance(one, questions.IssueCommand))
    assert (asked.hosts, asked.name, asked.texts) == (("node01",), "test.works", True)
    assert asked.arguments == {"key": "a=b", "other": ""}


def test_command_to_several_hosts_names_them_and_ends_as_the_worst(
    manager: Answering, ask: Ask
) -> None:
    code, out, err = ask("command", "send", "node01", "node02", "test.fail", "--timeout", "1m")
    assert code == Code.COMMAND_FAILED.value
    assert sorted(out.splitlines()) == [
        "node01  and is",
        "node01  node01 works",
        'node01  {"on":"node01"}',
        "node02  and is",
        "node02  node02 works",
        'node02  {"on":"node02"}',
    ]
    assert err == "encamp: test.fail on node02 failed.\n"


def test_what_is_to_be_said_of_a_command_that_is_done_is_said(manager: Answering, ask: Ask) -> None:
    code, _, err = ask("command", "send", "node01", "test.cut")
    assert (code, err) == (0, "encamp: test.cut on node01 is done: Its output was cut.\n")


def test_hosts_that_were_left_out_are_named(manager: Answering, ask: Ask) -> None:
    code, out, err = ask("command", "send", "node*", "test.works", "--detach")
    assert (code, len(out.splitlines())) == (0, 4)
    reason = "it is lost: nothing was heard of it for 6 seconds"
    assert err == f"encamp: node05 is left out: {reason}.\n"


def test_command_as_json_is_a_line_for_each_thing(manager: Answering, ask: Ask) -> None:
    code, out, _ = ask("command", "send", "node01", "test.works", "--json")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[0]["output"]["offset"] == 0
    assert lines[1]["record"]["state"] == "done"


def test_detached_command_prints_its_id(manager: Answering, ask: Ask) -> None:
    code, out, _ = ask("command", "send", "node01", "test.endless", "--detach")
    assert (code, out.strip()) == (0, next(iter(manager.issued)))


def test_interrupted_command_is_cancelled_where_it_runs(manager: Answering, ask: Ask) -> None:
    def interrupt() -> None:
        while not any(isinstance(one, questions.FollowCommands) for one in manager.asked):
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    code, _, err = ask("command", "send", "node01", "test.endless")
    interrupting.join()
    assert manager.cancelled.is_set()
    assert code == Code.WRONG_STATE.value
    assert "Cancelling" in err


def test_who_waits_at_a_terminal_is_told_for_which_hosts(manager: Answering) -> None:
    with on_terminal({}, "command", "send", "*", "test.endless", rows=24, columns=80) as terminal:
        terminal.wait_for(b"encamp: 0 of 5 are over, waiting for head, node01, node02 and 2 more (")
        manager.cancelled.set()
        shown = terminal.all()
    # It is taken back before anything else is printed.
    assert shown.partition(b"s)")[2].startswith(b"\r\x1b[K")
    assert b"node04  node04 works" in shown
    assert b"waiting for" not in shown.rpartition(b"works")[2]


def test_who_waits_without_a_terminal_is_told_nothing(
    manager: Answering, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "PATIENCE", 0.0)
    monkeypatch.setattr(standing, "EVERY", 0.001)
    assert ask("command", "send", "node01", "test.work")[2] == ""


def test_command_to_no_host_is_an_error(manager: Answering, ask: Ask) -> None:
    code, _, err = ask("command", "send", "nodd", "test.works")
    assert code == 64
    assert "No host of the site fits" in err


@pytest.mark.parametrize(
    "words",
    [["node1"], ["a=b"], ["node1", "a=b"], ["n", "c", "a=b", "d"], ["n", "c", "a=1", "a=2"]],
)
def test_words_that_are_no_command_are_refused(words: list[str]) -> None:
    with pytest.raises(EncampError) as caught:
        understood(words)
    assert caught.value.code is Code.USAGE


def test_host_that_is_lost_is_not_taken_for_a_lost_manager(
    manager: Answering, ask: Ask, tmp_path: Path
) -> None:
    (tmp_path / "etc").mkdir()
    site = "bus: [nats://head:4222]\ncredential: /etc/x.creds\n"
    (tmp_path / "etc" / "site.yaml").write_text(site)
    code, _, err = ask("command", "send", "gone", "test.works")
    assert code == Code.UNREACHABLE.value
    assert err == "encamp: Host gone is lost.\n        It may come back.\n"


def test_triggers_tell_what_they_are_true_for_and_why_they_stopped(
    manager: Answering, ask: Ask
) -> None:
    _, out, _ = ask("trigger", "ls")
    assert " 4 " in row(out, "more_workers")
    assert "stopped: it fired 20 times" in out
    _, out, _ = ask("trigger", "show", "more_workers")
    assert "/etc/encamp/triggers.yaml:3" in out
    assert "30s" in row(out, "hold")
    assert "10m" in row(out, "cooldown")
    assert ask("trigger", "show", "less_workers")[0] == 64


def test_log_of_triggers_tells_the_values_they_saw(manager: Answering, ask: Ask) -> None:
    _, out, _ = ask("trigger", "log", "more_workers")
    holding, fired = out.splitlines()
    assert "true for 0 of 30 seconds; node01.load1 = 15.7" in holding
    assert "→ machine.start to node02" in fired
    lines = [json.loads(line) for line in ask("trigger", "log", "--json")[1].splitlines()]
    assert [line["judgement"] for line in lines] == ["holding", "fired"]


def test_trigger_that_is_about_nothing_there_is_not_passed_over(
    manager: Answering, ask: Ask, tmp_path: Path
) -> None:
    site = manager.site
    site.hosts = [msgspec.structs.replace(host, machines=()) for host in site.hosts]
    draft = tmp_path / "draft.yaml"
    draft.write_text("old:\n  when: machine.state == 'failed'\n  do: log(machine.name)\n")
    code, out, _ = ask("trigger", "test", "--triggers", str(draft))
    assert code == 0
    assert "there is no machine to judge it for" in row(out, "old")


def test_mistakes_in_triggers_are_told_when_they_are_loaded(manager: Answering, ask: Ask) -> None:
    code, _, err = ask("trigger", "reload")
    assert code == Code.CONFIGURATION.value
    assert "triggers.yaml:3: There is no 'lod1'." in err


ALONE = [
    *(["status"], ["hosts"], ["properties", "node1"], ["events"], ["events", "--follow"]),
    *(["ps", "--site"], ["top", "--once"], ["command", "ls"], ["command", "show", "a"]),
    *(["command", "send", "node1", "agent.ping"], ["command", "cancel", "a"]),
    *(["command", "offered"], ["command", "output", "a", "--follow"]),
    *(["trigger", "ls"], ["trigger", "show", "a"], ["trigger", "log"], ["trigger", "reload"]),
    *(["trigger", "test"],),
]


@pytest.mark.parametrize("words", ALONE, ids=" ".join)
def test_without_a_manager_it_is_said_how_to_start_one(
    words: list[str], ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENCAMP_DOOR", raising=False)
    monkeypatch.setenv("ENCAMP_HOME", str(tmp_path))
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path / "etc"))
    code, out, err = ask(*words)
    assert (code, out) == (Code.UNREACHABLE.value, "")
    assert f"No manager answers at {tmp_path}/manager.sock" in err
    assert "encamp serve" in err


def test_door_is_where_the_variable_the_site_or_the_home_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ENCAMP_DOOR", "ENCAMP_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert door() == SYSTEM_HOME / "manager.sock"
    own = tmp_path / "own"
    monkeypatch.setattr(asking, "default_home", lambda: Home(own))
    assert door() == SYSTEM_HOME / "manager.sock"
    own.mkdir()
    (own / "manager.sock").touch()
    assert door() == own / "manager.sock"
    (tmp_path / "site.yaml").write_text("door: /run/encamp/door.sock\n")
    assert door() == Path("/run/encamp/door.sock")
    monkeypatch.setenv("ENCAMP_DOOR", "/elsewhere.sock")
    assert door() == Path("/elsewhere.sock")


def test_node_of_a_larger_site_is_told_how_to_ask_from_there(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENCAMP_DOOR", raising=False)
    monkeypatch.setenv("ENCAMP_HOME", str(tmp_path))
    monkeypatch.setenv("ENCAMP_SITE_CONFIG", str(tmp_path))
    (tmp_path / "site.yaml").write_text(
        "name: perugia\nbus: [nats://head:4222]\ncredential: /etc/x.creds\n"
    )
    code, _, err = ask("hosts")
    assert code == Code.UNREACHABLE.value
    assert "the manager of 'perugia' is asked with a token" in err
    assert "encamp login" in err
    (tmp_path / "site.yaml").write_text(f"door: {tmp_path}/front.sock\n")
    assert f"{tmp_path}/front.sock" in ask("hosts")[2]
