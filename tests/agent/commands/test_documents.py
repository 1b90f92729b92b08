"""The document about commands shows what is there, and its examples do what it says."""

from __future__ import annotations

import os
import re
import time
import tomllib
from pathlib import Path

import pytest

from encamp.agent.commands import carry, left, records
from encamp.agent.commands.manual import shipped, updated
from encamp.agent.commands.plugin import GROUP
from encamp.agent.commands.supervising import MOST_UNDER_WAY
from encamp.describe.command_files import read_command_settings
from encamp.describe.sources import Level
from encamp.home import Home
from encamp.meeting import kept
from encamp.model.command import LARGEST_OUTPUT, CommandState
from encamp.model.machine import IDLE_FOR
from encamp.model.program import AT_ONCE, CommandSettings
from encamp.model.property import LARGEST_VALUE
from tests.agent.commands.listening import Asker
from tests.describe.describing import source

ROOT = Path(__file__).parents[3]
DOCUMENT = (ROOT / "docs" / "commands.md").read_text()


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)


def read(text: str, name: str) -> CommandSettings:
    return read_command_settings([(source(name, Level.SITE, 0), text.encode())])


def test_table_of_commands_is_up_to_date() -> None:
    assert updated(DOCUMENT) == DOCUMENT, "run 'make docs'"
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    internal = {"machine.exec", "request.run"}
    assert [command.name for command in shipped()] == sorted(declared[GROUP].keys() - internal)


def test_every_state_is_explained() -> None:
    states = DOCUMENT.partition("| state | meaning |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| ([a-z ]+) \|", states, re.MULTILINE) == [
        state.value for state in CommandState
    ]


def test_bounds_are_those_that_are_written() -> None:
    words = " ".join(DOCUMENT.split())
    assert f"{LARGEST_OUTPUT >> 20} MiB are kept" in words
    assert f"has {carry.GRACE:.0f} seconds" in words
    assert f"at most {LARGEST_VALUE:,} bytes" in words
    assert f"carries out {AT_ONCE} commands" in words
    assert f"At most {MOST_UNDER_WAY:,} wait" in words
    assert records.REMEMBERED == 7 * 86400, "even a week later"


def test_ini_example_says_the_same_as_the_yaml_one() -> None:
    (ini,) = examples("ini")
    listing, taking = (read(text, "commands.yaml") for text in examples("yaml"))
    ((short,), (_, long)) = read(ini, "commands.ini").programs, listing.programs
    assert (short.words, short.user) == (long.words, long.user)
    assert short.definition.parameters == long.definition.parameters
    assert taking.accept == ("agent.ping", "machine.*", "program.disk_health")
    assert taking.at_once == 4


async def test_plugin_of_the_document_works_when_it_is_installed(
    host: Home, asker: Asker, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,), (declared,) = examples("python"), examples("toml")
    (package / "site_commands.py").write_text(code)
    entries = tomllib.loads(declared)["project"]["entry-points"][GROUP]
    (information,) = package.glob("*.dist-info")
    lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
    (information / "entry_points.txt").write_text(f"[{GROUP}]\n{lines}")
    scratch = tmp_path / "scratch"
    for name in ("old", "new"):
        (scratch / "alice" / name).mkdir(parents=True)
    os.utime(scratch / "alice" / "old", (time.time() - 86400 * 20,) * 2)
    monkeypatch.setenv("SCRATCH", str(scratch))
    async with asker.agent(host) as commands:
        done = await asker.run(commands, "scratch.clear", directory="alice")
        assert done.value == 1
        assert done.output == b"removing old\n"
        refused = await asker.run(commands, "scratch.clear", directory="../..", days=0.5)
        assert refused.reason == f"../.. is not below {scratch}. Name one that is."
    assert [path.name for path in (scratch / "alice").iterdir()] == ["new"]


def test_what_hosts_keep_is_told_as_it_is() -> None:
    told = (ROOT / "docs" / "hosts.md").read_text()
    assert left.KEPT_FOR == 7 * 86400
    assert "for 7 days at most" in told
    assert left.LARGEST_KEPT == 0.25
    assert "quarter of the file system" in told.replace("\n", " ")
    assert kept.LARGEST_KEPT == 1 << 30
    assert "Of each stream 1 GiB is kept" in told
    assert IDLE_FOR == 3600
    assert "for an hour" in told
