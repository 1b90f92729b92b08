"""The triggers in the site's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from encamp.core.schema import Schema
from encamp.describe import places
from encamp.describe.definition_files import definition_places, read_files
from encamp.describe.trigger_files import read_triggers
from encamp.model.command import CommandDefinition
from encamp.model.trigger import TriggerDefinition


def read_site_triggers(
    schema: Schema, commands: Mapping[str, CommandDefinition]
) -> Sequence[TriggerDefinition]:
    found = places.look(definition_places("triggers"))
    return read_triggers(read_files(found), schema, commands)
