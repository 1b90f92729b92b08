"""What the documents show is what the code does: tables, and descriptions that load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from encamp.agent.commands.offers import plugins
from encamp.agent.properties.finding import Plugins
from encamp.core.kinds import schema_of
from encamp.describe.batch_file import read_batch_settings
from encamp.describe.command_files import read_command_settings
from encamp.describe.environments import shipped_library
from encamp.describe.manual import PLACE, TABLES, updated
from encamp.describe.property_files import read_properties, shipped_properties
from encamp.describe.setting_files import read_settings
from encamp.describe.site_file import read_site
from encamp.describe.sources import Level, Source
from encamp.describe.trigger_files import read_triggers
from encamp.model.environment import Storage
from tests.describe.describing import source
from tests.yaml_examples import Example, read_yaml_examples

DOCS = Path(__file__).parent.parent.parent / "docs"
DOCUMENT = DOCS / "environments.md"
EXAMPLES = [
    pytest.param(example, id=f"{path.name}:{example.line}")
    for path in sorted(DOCS.glob("*.md"))
    for example in read_yaml_examples(path.read_text())
]


SITES_FILES: dict[str, Callable[[list[tuple[Source, bytes]]], object]] = {
    "settings.yaml": read_settings,
    "commands.yaml": read_command_settings,
    "site.yaml": lambda files: read_site(*files[0]),
    "batch.yaml": lambda files: read_batch_settings(*files[0]),
    "triggers.yaml": lambda files: read_triggers(
        files,
        schema_of(shipped_properties(), ["workers"]),
        {name: offer.definition for name, offer in plugins(ours_only=True)[0].items()},
    ),
    "properties.yaml": lambda files: read_properties(files, Plugins().names),
}
"""What the files of a site that describe no environments are read by."""


def test_tables_are_up_to_date() -> None:
    texts = [path.read_text() for path in DOCS.glob("*.md")]
    assert {match[1] for text in texts for match in PLACE.findall(text)} == set(TABLES)
    assert [updated(text) for text in texts] == texts, "run 'make docs'"


@pytest.mark.parametrize("example", EXAMPLES)
def test_description_in_a_document_loads(example: Example) -> None:
    level = Level.SITE if example.name.startswith("site/") else Level.USER
    where = source(example.name, level, 1)
    read = SITES_FILES.get(Path(example.name).name)
    if read is not None:
        assert read([(source(example.name, Level.SITE, 0), example.text.encode())])
        return
    made = shipped_library()
    before = len(made.described)
    made.add(where, example.text.encode())
    made.all()
    assert [str(mistake) for mistake in made.mistakes.found] == []
    assert len(made.described) > before


def test_the_smartdomains_figure_means_what_the_figure_means() -> None:
    (figure,) = [
        example
        for example in read_yaml_examples(DOCUMENT.read_text())
        if "PhysHost01" in example.text
    ]
    made = shipped_library()
    made.add(source("figure.yaml", Level.USER, 1), figure.text.encode())
    found = made.all()
    first, second, third = (found[f"domain{number}"] for number in (1, 2, 3))
    assert (first.storage, second.storage) == (Storage.SPARSE, Storage.LVM)
    assert first.labels == second.labels == {"host": "PhysHost01.cern.ch"}
    assert third.labels == {"host": "PhysHost022.cern.ch"}
    assert first.image == second.image == third.image
    assert first.context.run == ("hostname PhysHost01-dom1",)
    assert "123.456.789.012" in (second.context.files[0].content or "")
    assert first.context.variables == {"PARTNER": "${late.peers.domain2.address}"}
    assert "computer1" not in found


def test_examples_of_a_document_are_found() -> None:
    document = (
        "<!-- file: settings.yaml -->\n```yaml\na: 1\n```\n```console\n$ x\n```\n"
        "<!-- not loaded: wrong -->\n```yaml\nb\n```\n\n```yaml\nc: 3\n```\n"
    )
    assert read_yaml_examples(document) == [
        Example("settings.yaml", 2, "a: 1\n"),
        Example("environments.yaml", 13, "c: 3\n"),
    ]
