"""A live manager is called in all the ways that its OpenAPI document allows, and in many that it
does not: nothing breaks it, and all it says is as the document says.

ENCAMP_TEST_API_EXAMPLES says how many calls of each operation are made up, beside those that follow
from the document; 500 take half an hour.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ENCAMP
from tests.site.siting import Daemon, free_port, root_only

EXAMPLES = int(os.environ.get("ENCAMP_TEST_API_EXAMPLES", "2"))

pytestmark = root_only

SITE = """
host: node1
api:
  listen: 127.0.0.1:{port}
  rate: 100000
  failures: 1000000
"""
TRIGGERS = "lonely: { when: len(hosts) < 2, do: log('x') }\n"

ENDLESS = "(stream|output)$"
"""What has no end, or only with what it is about, is tested by itself."""
LEFT_OUT = ("revoke_token", "forget_host", "ask")
"""It would find out its own token, and end with it; and hosts that are gone are what the tests of
hosts have. Questions are not described by the document: what is none is refused."""

KNOWN = """
[checks.positive_data_acceptance]
# What the document allows may still make no sense on this site.
expected-statuses = ["2xx", "401", "403", "404", "409", "422", "429"]
"""


class Served:
    """`encamp serve` with its API."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        (root / "etc").mkdir()
        (root / "etc" / "site.yaml").write_text(SITE.format(port=port))
        (root / "etc" / "triggers.yaml").write_text(TRIGGERS)
        self.variables = {
            "ENCAMP_HOME": str(root / "home"),
            "ENCAMP_SITE_CONFIG": str(root / "etc"),
            "ENCAMP_USER_CONFIG": str(root / "nowhere"),
            "ENCAMP_QUIET": "1",
        }
        self.daemon = Daemon([ENCAMP, "serve"], self.variables, root / "log")

    def __call__(self, *words: str) -> str:
        return subprocess.run(
            [ENCAMP, *words],
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    made.daemon.start()
    try:
        while b"The site is up" not in made.daemon.log.read_bytes():
            assert made.daemon.process is not None
            assert made.daemon.process.poll() is None, made.daemon.said()
        yield made
    finally:
        made.daemon.end()


def parameters(served: Served) -> str:
    """So that there is something to find: what operations are told as names."""
    issued: Any = json.loads(served("command", "send", "--json", "node1", "agent.ping"))
    command = (issued[0] if isinstance(issued, list) else issued)["id"]
    names = {
        "host": "node1",
        "properties": "node1",
        "command": command,
        "cancel_command": command,
        "trigger": "lonely",
        "trigger_log": "lonely",
        "environment": "mini",
        "why": "node1",
    }
    return "".join(
        f'[[operations]]\ninclude-operation-id = "{operation}"\n'
        f'parameters = {{ "path.name" = "{name}" }}\n'
        for operation, name in names.items()
    )


def test_nothing_that_can_be_called_breaks_it(served: Served) -> None:
    token = served("token", "create", "--scope", "administer").strip()
    (served.root / "schemathesis.toml").write_text(KNOWN + parameters(served))
    excluded = [word for name in LEFT_OUT for word in ("--exclude-operation-id", name)]
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("schemathesis"), "run"),
            f"{served.url}/v1/openapi.json",
            *("--header", f"Authorization: Bearer {token}"),
            *("--exclude-path-regex", ENDLESS, *excluded),
            *("--phases", "coverage,fuzzing"),
            *("--max-examples", str(EXAMPLES), "--seed", "1", "--generation-deterministic"),
            *("--request-timeout", "60", "--warnings", "off", "--no-color"),
        ],
        cwd=served.root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    made = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
    assert made is not None
    assert int(made[1]) >= 500
    assert "Traceback" not in served.daemon.said()
