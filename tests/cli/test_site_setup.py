"""`encamp site`: from nothing to hosts that talk, by its commands alone."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from encamp.bus.opening import open_bus
from encamp.describe.site_file import read_site
from encamp.describe.sources import Level, Source
from encamp.model.site import EVERYBODY, MANAGER, Site
from tests.bus.meeting import Kept, ignore
from tests.bus.nats_server import free_port, nats_server
from tests.conftest import ENCAMP


def encamp(*words: str | Path, input: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ENCAMP, "site", *words],
        input=input,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ENCAMP_SITE_CONFIG": "/nonexistent/encamp"},
    )


def site_of(directory: Path) -> Site:
    path = directory / "site.yaml"
    source = Source(str(path), Level.SITE, 0, str(directory))
    return read_site(source, path.read_bytes())


async def test_a_site_is_set_up_joined_and_left_by_commands_alone(tmp_path: Path) -> None:
    home, node, port = tmp_path / "site", tmp_path / "node", free_port()
    made = encamp("init", home, "--name", "perugia", "--bus", f"127.0.0.1:{port}")
    assert made.returncode == 0, made.stderr
    assert str(home / "nats-server.conf") in made.stdout.splitlines()
    assert "encamp manager" in made.stderr

    added = encamp("add", "n1", "--group", "blue", "--directory", home)
    assert added.returncode == 0, added.stderr
    assert len(added.stdout.splitlines()) == 1
    joined = encamp("join", "-", "--directory", node, input=added.stdout)
    assert joined.returncode == 0, joined.stderr
    level = "SITE" if os.geteuid() == 0 else "USER"
    assert f"ENCAMP_{level}_CONFIG={node} encamp agent" in joined.stderr

    site = site_of(node)
    assert (site.name, site.host, site.groups) == ("perugia", "n1", ("blue",))
    kept = Kept()
    config = home / "nats-server.conf"
    with nats_server(tmp_path, config=config, port=port):
        async with (
            open_bus(site_of(home), MANAGER, (), kept),
            open_bus(site, "n1", (EVERYBODY, *site.groups), ignore) as n1,
        ):
            await n1.request(MANAGER, b"hello")
    assert kept.bodies == [b"hello"]

    listed = json.loads(encamp("ls", "--json", "--directory", home).stdout)
    assert [(row["name"], row["groups"]) for row in listed["hosts"]] == [("n1", ["blue"])]
    assert "n1" in encamp("ls", "--directory", home).stdout
    removed = encamp("remove", "n1", "--directory", home)
    assert removed.stdout.splitlines() == [str(config)]
    assert "reload" in removed.stderr
    assert json.loads(encamp("ls", "--json", "--directory", home).stdout)["hosts"] == []


def test_several_hosts_are_added_by_one_command_with_a_line_for_each(tmp_path: Path) -> None:
    encamp("init", tmp_path / "site")
    added = encamp("add", "n1", "n2", "--directory", tmp_path / "site")
    assert added.returncode == 0, added.stderr
    lines = [line.split() for line in added.stdout.splitlines()]
    assert [name for name, _ in lines] == ["n1", "n2"]
    for name, secret in lines:
        joined = encamp("join", "-", "--directory", tmp_path / name, input=secret)
        assert joined.returncode == 0, joined.stderr
        assert site_of(tmp_path / name).host == name


def test_what_cannot_be_done_says_why(tmp_path: Path) -> None:
    for words, code, said in (
        (("init", tmp_path / "a", "--bus", "no address"), 64, "no address of a server"),
        (("init", tmp_path / "a", "--certificate", "/x"), 64, "--certificate and --key"),
        (("init", tmp_path / "a", "--agents", "manager"), 64, "the manager's name"),
        (("ls", "--directory", tmp_path), 66, "No site was set up"),
        (("join", "nonsense", "--directory", tmp_path), 64, "not a secret"),
        (("init", "/proc/nowhere"), 77, "cannot be made"),
    ):
        done = encamp(*words)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert said in done.stderr
    assert list(tmp_path.iterdir()) == []
