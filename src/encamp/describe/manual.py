"""The tables in the documents, made from what checks descriptions and from what is shipped.

`python -m encamp.describe.manual FILE...` brings documents' tables up to date."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from encamp.describe.attributes import CONTEXT, ENVIRONMENT, IMAGE_RECORD, READY
from encamp.describe.batch_file import BATCH_FILE, RULE
from encamp.describe.batch_file import SIZE as BATCH_SIZE
from encamp.describe.command_files import PARAMETER, PROGRAM
from encamp.describe.command_files import SETTINGS as HOST_COMMANDS
from encamp.describe.policy_file import LIMIT, PLACEMENT
from encamp.describe.property_files import batch_properties, definition, shipped_properties
from encamp.describe.records import Record
from encamp.describe.setting_files import SETTINGS
from encamp.describe.site_file import PRESENCE, RIGHT, SITE_FILE, TRAFFIC
from encamp.describe.trigger_files import TRIGGER
from encamp.model.property import PropertyDefinition

PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def table(record: Record) -> str:
    lines = ["| attribute | meaning | default |", "| --- | --- | --- |"]
    for name, attribute in record.attributes.items():
        default = f"`{attribute.default}`" if attribute.default is not None else ""
        limited = "; only in the site's file" if attribute.trusted else ""
        lines.append(f"| `{name}` | {attribute.about}{limited} | {default} |")
    return "\n".join(lines) + "\n"


def table_of_properties(properties: Iterable[PropertyDefinition]) -> str:
    lines = ["| property | type | unit | ticks | tolerance | what it is |", "|" + " --- |" * 6]
    for found in properties:
        tolerance = f"{found.tolerance:,.10g}" if found.tolerance else ""
        lines.append(
            f"| `{found.name}` | {found.return_type.value} | {found.unit} | {found.ticks:g}"
            f" | {tolerance} | {found.help} |"
        )
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "environment": partial(table, ENVIRONMENT),
    "image": partial(table, IMAGE_RECORD),
    "ready": partial(table, READY),
    "context": partial(table, CONTEXT),
    "settings": partial(table, SETTINGS),
    "batch": partial(table, BATCH_FILE),
    "rule": partial(table, RULE),
    "batch_size": partial(table, BATCH_SIZE),
    "site": partial(table, SITE_FILE),
    "presence": partial(table, PRESENCE),
    "traffic": partial(table, TRAFFIC),
    "right": partial(table, RIGHT),
    "placement": partial(table, PLACEMENT),
    "limit": partial(table, LIMIT),
    "property": partial(table, definition()),
    "trigger": partial(table, TRIGGER),
    "shipped_properties": lambda: table_of_properties(shipped_properties()),
    "batch_properties": lambda: table_of_properties(batch_properties()),
    "listed_program": partial(table, PROGRAM),
    "listed_parameter": partial(table, PARAMETER),
    "host_commands": partial(table, HOST_COMMANDS),
}


def updated(document: str) -> str:
    """A document with its tables as they should be."""
    return PLACE.sub(
        lambda match: f"{match[1]}\n{TABLES[match[2]]()}\n{match[3]}",
        document,
    )


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        path.write_text(updated(path.read_text()))
