"""The examples of the document about properties do what it says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from encamp.agent.properties.finding import Plugins
from encamp.agent.properties.plugin import GROUP
from encamp.agent.properties.reader import Reader
from encamp.describe.property_files import read_properties
from encamp.describe.sources import Level, Source
from encamp.home import Home
from encamp.model.property import LARGEST_VALUE, PropertyDefinition
from tests.agent.properties.installing import installed
from tests.agent.properties.reading import defined, error_of

DOCUMENT = (Path(__file__).parents[3] / "docs" / "properties.md").read_text()


def examples(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)


def definitions(text: str, name: str) -> dict[str, PropertyDefinition]:
    found = read_properties([(Source(name, Level.SITE, 0, "/"), text.encode())], Plugins().names)
    return {definition.name: definition for definition in found}


def test_every_plugin_is_in_the_table() -> None:
    table = DOCUMENT.partition("## What can be read")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == Plugins().names


def test_bound_is_the_one_that_is_written() -> None:
    assert f"at most {LARGEST_VALUE:,} bytes" in DOCUMENT


async def test_ini_example_is_read(home: Home) -> None:
    (text,) = examples("ini")
    definition = definitions(text, "properties.ini")["ram_free"]
    reader = Reader([definition], Plugins(), changed=lambda _: None, home=home)
    value = (await reader.read())["ram_free"].value
    assert isinstance(value, int)
    assert value > 0


def test_example_of_changes_changes_the_shipped_ones() -> None:
    _, changing, _ = examples("yaml")
    found = definitions(changing, "properties.yaml")
    assert (found["memory_free"].ticks, found["memory_free"].command) == (2.0, "memory")
    assert found["load15"].ticks == 0
    assert "network_sent" not in found


async def test_examples_of_programs_give_values(home: Home) -> None:
    _, _, running = examples("yaml")
    found = definitions(running, "properties.yaml")
    reader = Reader(found.values(), Plugins(), changed=lambda _: None, home=home)
    readings = await reader.read(["processes", "limits"])
    assert isinstance(readings["processes"].value, int)
    assert readings["limits"].value == {"queue": "short", "slots": 12}


async def test_plugin_of_the_document_works_when_it_is_installed(
    home: Home, tmp_path: Path
) -> None:
    (source,) = examples("python")
    (project,) = examples("toml")
    entries = tomllib.loads(project)["project"]["entry-points"][GROUP]
    licences = tmp_path / "licences"
    licences.mkdir()
    (licences / "solver").write_text("a\nb\nc\n")
    source = source.replace("/srv/licences", str(licences))
    definitions = [defined("licences", "solver"), defined("changes", name="other")]
    with installed(tmp_path / "packages", "site_properties", source, entries):
        reader = Reader(definitions, Plugins(), changed=lambda _: None, home=home)
        await reader.read()
        readings = await reader.read()
        error = await error_of(home, defined("licences", "painter"))
    assert (readings["tested"].value, readings["other"].value) == (3, 2)
    assert error == "There are no licences of 'painter' on this host."


def test_a_name_of_encamp_s_own_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taking = {"memory": "taking:read", "taken": "taking:read"}
    with installed(tmp_path, "taking", "def read(asked): return 1\n", taking):
        plugins = Plugins()
        assert plugins.load("memory").__module__.startswith("encamp.")
        assert plugins.load("taken").__module__ == "taking"
    assert "taking:read is left out" in caplog.text
