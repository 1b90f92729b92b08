"""The command line of a site against a real one: `encamp serve`, with a real agent."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from encamp.home import Home
from encamp.model.errors import Code
from tests.bus.nats_server import free_port, nats_server
from tests.cli.driving import Running, Start, starter
from tests.conftest import ENCAMP
from tests.site.accounts import PATHS, Account, accounts
from tests.site.siting import Daemon

pytestmark = pytest.mark.site

HOST = "here"
PATIENCE = 60.0
"""Seconds after which what was waited for will not come about any more."""

COMMANDS = """
wait:
  help: say that it has begun, and end when there is a file
  run: [/bin/sh, -c, 'echo begun; while [ ! -e "$0" ]; do sleep 0.02; done; echo over', '{file}']
  parameters: {file: {help: until this is there}}
fail:
  run: [/bin/sh, -c, 'echo it does not work; exit 3']
"""

TRIGGERS = """
lonely:
  when: len(hosts) < 2
  do: log('there is one host')
  once: true
"""


class Served:
    """`encamp serve`, which can be killed and started again, and the command line beside it."""

    def __init__(self, root: Path, user: str) -> None:
        self.root = root
        self.site = root / "etc"
        self.home = Home(root / "home")
        self.home.root.mkdir(mode=0o711)
        self.site.mkdir()
        rights = f"rights:\n  - who: ['{user}']\n    commands: [agent.ping]\n"
        self.write("site.yaml", f"name: test\nhost: {HOST}\n{rights}")
        self.write("commands.yaml", COMMANDS)
        self.write("triggers.yaml", TRIGGERS)
        self.variables = {
            "ENCAMP_HOME": str(self.home.root),
            "ENCAMP_SITE_CONFIG": str(self.site),
            "ENCAMP_USER_CONFIG": str(root / "nowhere"),
            "ENCAMP_DEBUG": "1",
        }
        self.daemon = Daemon([ENCAMP, "serve"], self.variables, root / "log")

    def write(self, name: str, text: str) -> Path:
        path = self.site / name
        path.write_text(text)
        path.chmod(0o644)
        return path

    def start(self) -> None:
        self.daemon.start()
        self.wait_for(lambda: any(host["presence"] == "joined" for host in self.hosts()))

    def hosts(self) -> Any:
        done = self("hosts", "--json", check=False)
        return json.loads(done.stdout) if done.returncode == 0 else []

    def wait_for(self, true: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < end, self.daemon.said()
            time.sleep(0.05)

    def __call__(self, *words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [ENCAMP, *words],
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{words}: {done.returncode}\n{done.stderr}"
        return done

    def ask(self, *words: str | Path) -> Any:
        return json.loads(self(*words, "--json").stdout)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that other accounts can enter."""
    with tempfile.TemporaryDirectory(prefix="encamp-served-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def alice(place: Path) -> Iterator[Account]:
    """Another user of the host."""
    assert os.geteuid() == 0, "only root can make accounts"
    images = Home(place / "no-images").prepare()
    before = os.umask(0o022)
    try:
        with accounts(1, place, images) as made:
            yield made[0]
    finally:
        os.umask(before)


@pytest.fixture(scope="module")
def served(place: Path, alice: Account) -> Iterator[Served]:
    served = Served(place, alice.name)
    try:
        served.start()
        yield served
    finally:
        served.daemon.end()


@pytest.fixture
def start(served: Served, tmp_path: Path) -> Start:
    return starter(served.variables, tmp_path)


def send_waiting(held: ExitStack, start: Start, go: Path) -> Running:
    """A command that runs until there is a file, and has begun."""
    sent = held.enter_context(start("command", "send", HOST, "program.wait", f"file={go}"))
    assert sent.line() == b"begun\n"
    return sent


def test_next_steps_that_are_printed_work_for_an_ordinary_account(
    alice: Account, tmp_path: Path
) -> None:
    """Whose own directory of settings counts, and no site's."""
    program = alice.directory / "encamp"
    program.write_text(f'#!/bin/sh\nexec {alice.python} -m encamp.cli.main "$@"\n')
    program.chmod(0o755)
    variables = alice.variables | {"PATH": f"{alice.directory}:{PATHS}"}
    site, node, port = alice.directory / "my site", alice.directory / "node", free_port()

    def encamp(*words: str | Path, input: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return alice.run("encamp", *words, variables=variables, input=input)

    made = encamp("site", "init", site, "--bus", f"127.0.0.1:{port}").stderr.decode()
    config = shlex.split(made.partition("nats-server -c ")[2].partition("\n")[0])
    assert config == [f"{site}/nats-server.conf"]
    secret = encamp("site", "add", "n1", "--directory", site).stdout
    joined = encamp("site", "join", "-", "--directory", node, input=secret).stderr.decode()
    become = f"setpriv --reuid {alice.uid} --regid {alice.gid} --clear-groups".split()
    with ExitStack() as held:
        held.enter_context(nats_server(tmp_path, config=Path(config[0]), port=port))
        daemons = []
        for said, step in ((made, "manager here:  "), (joined, "Start its agent:  ")):
            line = said.partition(step)[2].partition("\n")[0]
            command = [*become, "sh", "-c", f"cd /; exec env {line}"]
            daemons.append(Daemon(command, variables, tmp_path / step.split()[0]))
            held.callback(daemons[-1].end)
            daemons[-1].start()
        end = time.monotonic() + PATIENCE
        while b'"joined"' not in encamp("hosts", "--json").stdout:
            for daemon in daemons:
                assert daemon.process is not None
                assert daemon.process.poll() is None, daemon.said()
            assert time.monotonic() < end, [daemon.said() for daemon in daemons]
            time.sleep(0.1)


def test_value_of_a_command_comes_back(served: Served) -> None:
    done = served("command", "send", HOST, "agent.ping", "text=hello there")
    assert (done.stdout, done.stderr) == ("hello there\n", "")
    latest = served.ask("command", "ls", "--last", "1")[0]
    assert (latest["name"], latest["host"], latest["issuer"]) == ("agent.ping", HOST, "root")
    assert (latest["state"], latest["value"]) == ("done", "hello there")


def test_output_comes_while_the_command_runs(start: Start, tmp_path: Path) -> None:
    with ExitStack() as held:
        sent = send_waiting(held, start, tmp_path / "go")
        (tmp_path / "go").touch()
        assert sent.line() == b"over\n"
        sent.stdout.read()
        assert sent.ends_with() == 0


def test_command_that_fails_tells_how(served: Served) -> None:
    done = served("command", "send", HOST, "program.fail", check=False)
    assert done.returncode == Code.COMMAND_FAILED.value
    assert done.stdout == "it does not work\n"
    assert f"program.fail on {HOST} failed" in done.stderr
    latest = served.ask("command", "ls", "--last", "1")[0]
    assert (latest["state"], latest["exit_code"]) == ("failed", 3)
    assert served("command", "output", latest["id"][:12]).stdout == "it does not work\n"


def test_command_that_takes_too_long_is_ended(served: Served, tmp_path: Path) -> None:
    words = ("program.wait", f"file={tmp_path / 'never'}", "--timeout", "0.3s")
    done = served("command", "send", HOST, *words, check=False)
    assert done.returncode == Code.TIMEOUT.value
    assert "took too long" in done.stderr


def test_interrupt_cancels_the_command_on_its_host(
    served: Served, start: Start, tmp_path: Path
) -> None:
    with ExitStack() as held:
        sent = send_waiting(held, start, tmp_path / "never")
        sent.process.send_signal(signal.SIGINT)
        assert sent.ends_with() == Code.WRONG_STATE.value
        assert b"was cancelled" in sent.stderr.read()
    assert served.ask("command", "ls", "--last", "1")[0]["state"] == "cancelled"


def test_detached_command_can_be_followed_and_cancelled(served: Served, tmp_path: Path) -> None:
    words = ("program.wait", f"file={tmp_path / 'never'}", "--detach")
    id = served("command", "send", HOST, *words).stdout.strip()
    served.wait_for(lambda: served("command", "output", id).stdout == "begun\n")
    assert [record["id"] for record in served.ask("command", "ls", "--under-way")] == [id]
    assert served("command", "cancel", id[:10]).stdout.strip() == id
    assert served("command", "output", id, "--follow").stdout == "begun\n"
    assert served.ask("command", "show", id)["state"] == "cancelled"


def test_wrong_arguments_are_refused_before_anything_is_sent(served: Served) -> None:
    before = served.ask("command", "ls")
    for words, said in {
        ("agent.ping", "txt=a"): "Did you mean 'text'?",
        ("agent.pong",): "offers no command 'agent.pong'",
        ("image.pull", "image=x", "force=maybe"): "force",
    }.items():
        done = served("command", "send", HOST, *words, check=False)
        assert done.returncode == Code.USAGE.value
        assert said in done.stderr
    assert served.ask("command", "ls") == before


def test_what_is_followed_goes_on_when_the_site_is_killed_and_started_again(
    served: Served, start: Start, tmp_path: Path
) -> None:
    with ExitStack() as held:
        told = held.enter_context(start("events", "--follow", "--last", "1", "--json"))
        first = json.loads(told.line())["number"]
        sent = send_waiting(held, start, tmp_path / "go")
        served.daemon.kill()
        served.start()
        (tmp_path / "go").touch()
        assert sent.line() == b"over\n"
        sent.stdout.read()
        assert sent.ends_with() == 0
        assert b"Waiting for it" in sent.stderr.read()
        kept = [
            json.loads(line)
            for line in served("events", "--last", "1000", "--json").stdout.splitlines()
        ]
        expected = [event["number"] for event in kept if event["number"] > first]
        assert [json.loads(told.line())["number"] for _ in expected] == expected


def test_properties_are_read_anew_when_asked(served: Served) -> None:
    def read() -> Any:
        words = ("properties", HOST, "memory_total", "--refresh")
        return served.ask(*words)[HOST]["memory_total"]

    first, second = read(), read()
    assert second["at"] > first["at"]
    assert second["value"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert "GiB" in served("properties", HOST, "memory_total").stdout


def test_views_show_the_site(served: Served) -> None:
    assert HOST in served("hosts").stdout
    assert HOST in served("top", "--once").stdout
    assert served.ask("status")["hosts"] == {"joined": 1, "left": 0, "lost": 0}
    assert served.ask("ps", "--site") == []
    assert "file:str" in served("command", "offered", HOST).stdout


def test_triggers_tell_what_they_did_and_saw(served: Served) -> None:
    def log() -> list[Any]:
        words = ("trigger", "log", "lonely", "--json")
        return [json.loads(line) for line in served(*words).stdout.splitlines()]

    served.wait_for(lambda: any(entry["judgement"] == "fired" for entry in log()))
    (view,) = served.ask("trigger", "ls")
    assert view["place"] == f"{served.site / 'triggers.yaml'}:2"
    assert "there is one host" in served("events", "--last", "100").stdout
    assert "len(hosts)" in served("trigger", "show", "lonely").stdout


def test_triggers_are_tried_out_on_the_site_and_on_a_recorded_one(
    served: Served, tmp_path: Path
) -> None:
    draft = tmp_path / "draft.yaml"
    draft.write_text("roomy:\n  when: host.memory_total > 1000\n  do: send(host, 'agent.ping')\n")
    (live,) = served.ask("trigger", "test", "--triggers", draft)
    assert (live["judgement"], live["subject"]) == ("fired", HOST)
    assert served.ask("trigger", "show", "lonely")
    recorded = tmp_path / "site.json"
    recorded.write_text(served("site", "record").stdout)
    alone = subprocess.run(
        [ENCAMP, "trigger", "test", "roomy", "--triggers", draft, "--site", recorded, "--json"],
        env={**os.environ, **served.variables, "ENCAMP_DOOR": "/nowhere"},
        capture_output=True,
        check=True,
    )
    assert json.loads(alone.stdout)[0]["seen"] == live["seen"]
    draft.write_text("roomy:\n  when: host.memory_totl > 1000\n  do: send(host, 'agent.ping')\n")
    wrong = served("trigger", "test", "--triggers", draft, check=False)
    assert wrong.returncode == Code.CONFIGURATION.value
    assert "draft.yaml:2" in wrong.stderr
    assert "memory_total" in wrong.stderr


def test_triggers_with_mistakes_are_not_loaded(served: Served) -> None:
    served.write("triggers.yaml", TRIGGERS.replace("hosts", "hostz"))
    try:
        done = served("trigger", "reload", check=False)
        assert done.returncode == Code.CONFIGURATION.value
        assert "triggers.yaml:3" in done.stderr
        assert [view["name"] for view in served.ask("trigger", "ls")] == ["lonely"]
    finally:
        served.write("triggers.yaml", TRIGGERS)
    assert "lonely" in served("trigger", "reload").stdout


class Other:
    """The command line as another user has it."""

    def __init__(self, served: Served, account: Account) -> None:
        self.account = account
        self._variables = {"ENCAMP_DOOR": str(served.home.root / "manager.sock")}

    def __call__(self, *words: str) -> tuple[int, str, str]:
        done = self.account.encamp(*words, check=False, variables=self._variables)
        return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def other(served: Served, alice: Account) -> Other:
    return Other(served, alice)


def test_others_may_look(other: Other) -> None:
    code, out, err = other("hosts", "--json")
    assert code == 0, err
    assert json.loads(out)[0]["name"] == HOST


def test_others_may_do_what_they_were_granted_under_their_own_name(
    served: Served, other: Other
) -> None:
    assert other("command", "send", HOST, "agent.ping") == (0, "pong\n", "")
    assert served.ask("command", "ls", "--last", "1")[0]["issuer"] == other.account.name


def test_others_may_not_do_more(served: Served, other: Other) -> None:
    before = served.ask("command", "ls")
    code, _, err = other("command", "send", HOST, "program.fail")
    assert code == Code.NOT_PERMITTED.value
    assert other.account.name in err
    code, _, _ = other("trigger", "reload")
    assert code == Code.NOT_PERMITTED.value
    assert served.ask("command", "ls") == before


def test_others_do_not_see_what_root_sent(served: Served, other: Other) -> None:
    served("command", "send", HOST, "agent.ping", "text=secret")
    id = served.ask("command", "ls", "--last", "1")[0]["id"]
    assert "secret" not in other("command", "ls", "--json")[1]
    for words in (["show", id], ["output", id], ["cancel", id]):
        code, _, said = other("command", *words)
        assert (code, f"There is no command '{id}'" in said) == (Code.USAGE.value, True)
