"""JSON Schema for editors, made from the tables that check descriptions."""

from __future__ import annotations

from encamp.describe.attributes import ENVIRONMENT, NAME
from encamp.describe.kinds import Schema
from encamp.describe.setting_files import SETTINGS

DRAFT = "https://json-schema.org/draft/2020-12/schema"
REFERENCE: Schema = {
    "type": "string",
    "pattern": r"\$\{",
    "description": "A reference such as ${memory} or ${debian12.memory}.",
}


def environments_schema() -> Schema:
    return {
        "$schema": DRAFT,
        "title": "Encamp: environments.yaml",
        "type": ["object", "null"],
        "patternProperties": {f"^{NAME.pattern}$": ENVIRONMENT.schema()},
        "additionalProperties": False,
        "$defs": {"reference": REFERENCE},
    }


def settings_schema() -> Schema:
    return {
        "$schema": DRAFT,
        "title": "Encamp: settings.yaml",
        **SETTINGS.schema(),
        "$defs": {"reference": REFERENCE},
    }
