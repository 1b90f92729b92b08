"""The tables of attributes in the documents, made from those that check descriptions.

`python -m encamp.describe.manual FILE` brings a document's tables up to date."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from encamp.describe.attributes import CONTEXT, ENVIRONMENT, IMAGE_RECORD, READY
from encamp.describe.records import Record
from encamp.describe.setting_files import SETTINGS

TABLES = {
    "environment": ENVIRONMENT,
    "image": IMAGE_RECORD,
    "ready": READY,
    "context": CONTEXT,
    "settings": SETTINGS,
}

PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def table(record: Record) -> str:
    lines = ["| attribute | meaning | default |", "| --- | --- | --- |"]
    for name, attribute in record.attributes.items():
        default = f"`{attribute.default}`" if attribute.default is not None else ""
        limited = "; only in the site's file" if attribute.trusted else ""
        lines.append(f"| `{name}` | {attribute.about}{limited} | {default} |")
    return "\n".join(lines) + "\n"


def updated(document: str) -> str:
    """A document with its tables as they should be."""
    return PLACE.sub(
        lambda match: f"{match[1]}\n{table(TABLES[match[2]])}\n{match[3]}",
        document,
    )


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        path.write_text(updated(path.read_text()))
