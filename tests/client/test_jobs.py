"""Jobs through the HTTP API of a site of real daemons: as the documents say it is done."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from encamp import Client
from encamp.home import Home
from encamp.model.errors import Code, EncampError
from encamp.model.request import RequestState
from tests.conftest import ROOT
from tests.site.siting import QUICK, RunningSite, free_port, root_only, running_site

pytestmark = [pytest.mark.site, root_only]

EXAMPLES = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs/api.md").read_text(), re.MULTILINE | re.DOTALL
)


class Api:
    def __init__(self, site: RunningSite, port: int) -> None:
        self.site = site
        self.url = f"http://127.0.0.1:{port}"
        self.token = site("token", "create", "--scope", "use").stdout.strip()

    def client(self, token: str = "") -> Client:
        return Client(self.url, token or self.token)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory, site_home: Home) -> Iterator[Api]:
    """One host, which makes its machines in the home of the suite."""
    root = tmp_path_factory.mktemp("site")
    port = free_port()
    settings = f"{QUICK}\napi:\n  listen: 127.0.0.1:{port}\n"
    with running_site(root, (), settings, start=False) as site:
        site.add_agent("node1", site_home.root)
        with open(root / "node1" / "site.yaml", "a") as file:
            file.write("meeting:\n  listen: 127.0.0.1:0\n  address: 127.0.0.1\n")
        try:
            site.start()
            site.wait_for_hosts("node1")
            yield Api(site, port)
        finally:
            site.daemons["node1"].end()


@pytest.fixture(autouse=True)
def clean(nothing_left: None) -> None:
    """No test leaves a machine behind."""


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_of_the_documents_work(api: Api, number: int, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[number])
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        env={**os.environ, "ENCAMP_URL": api.url, "ENCAMP_TOKEN": api.token},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    if number == 0:
        assert re.fullmatch(r"hello from mini-\w+\n 0\n", done.stdout)
    # Not every example waits for all that it has begun.
    with api.client() as site:
        for job in site.requests(under_way=True):
            site.wait(job)


def go(api: Api, machine: str) -> None:
    """Have its job end, and the machine with it, perhaps before the answer is out."""
    api.site("exec", machine, "--", "touch", "/tmp/go", check=False)


def test_output_comes_while_the_job_runs_and_stays_when_it_is_over(api: Api) -> None:
    script = "echo one; echo other >&2; until [ -e /tmp/go ]; do sleep 0.05; done; echo two; exit 3"
    with api.client() as site:
        job = site.submit("mini", ["sh", "-c", script], label="slow")
        pieces = site.stream_output("slow")
        assert next(pieces) == b"one\n"
        running = site.request("slow")
        assert running.state is RequestState.RUNNING
        assert b"".join(site.stream_output("slow", wait=False)) == b"one\n"
        machine = running.parts[0].machine
        go(api, machine)
        assert b"".join(pieces) == b"two\n"
        assert site.wait(job).exit_code == 3
        assert site.output(job) == b"one\ntwo\n"
        assert site.output(job, stream="stderr") == b"other\n"


def test_job_goes_on_when_the_manager_is_killed(api: Api) -> None:
    with api.client() as site:
        script = "echo begun; until [ -e /tmp/go ]; do sleep 0.05; done; echo ended"
        job = site.submit("mini", ["sh", "-c", script])
        pieces = site.stream_output(job)
        assert next(pieces) == b"begun\n"
        api.site.daemons["manager"].kill()
        api.site.daemons["manager"].start()
        api.site.wait_for_hosts("node1")
        go(api, site.request(job.request.id).parts[0].machine)
        assert b"".join(pieces) == b"ended\n"
        assert site.wait(job).exit_code == 0


def test_output_of_others_is_not_told(api: Api) -> None:
    with api.client() as site:
        job = site.submit("mini", ["echo", "mine"])
        assert site.wait(job).state is RequestState.DONE
    words = ("--owner", "somebody", "--scope", "use")
    other = api.site("token", "create", *words).stdout.strip()
    with api.client(other) as site, pytest.raises(EncampError) as refused:
        site.output(job)
    assert refused.value.code is Code.USAGE


def test_machine_is_kept_until_it_is_cancelled(api: Api) -> None:
    with api.client() as site:
        standing = site.submit("mini", label="kept")
        for record in site.follow(standing):
            if record.state is RequestState.RUNNING:
                break
        (part,) = site.request("kept").parts
        assert api.site("exec", part.machine, "--", "echo", "here").stdout == "here\n"
        with pytest.raises(EncampError, match="Nothing is kept"):
            site.output("kept")
        site.cancel("kept")
        assert site.wait("kept").state in (RequestState.CANCELLED, RequestState.DONE)
