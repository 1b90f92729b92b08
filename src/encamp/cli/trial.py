"""Trying triggers out on a site, live or recorded, without acting."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from encamp.core.actions import Judged, Judgement
from encamp.core.recording import picture_of
from encamp.core.triggers import Engine
from encamp.describe import places
from encamp.describe.definition_files import definition_places, read_files
from encamp.describe.sources import Level, Source
from encamp.describe.trigger_files import read_triggers
from encamp.door.questions import AskRecording, Recording
from encamp.local_time import local_zone
from encamp.model.errors import Code, EncampError

if TYPE_CHECKING:
    from encamp.model.command import CommandDefinition


def try_out(name: str, site: Path | None, files: list[Path]) -> list[Judged]:
    """What the triggers, or the one of that name, would do."""
    # A file that was named and is not there is told whether there is a manager or not.
    written = trigger_files(files) if files else []
    recording = _live() if site is None else _recorded(site)
    world = picture_of(recording.hosts, recording.commands, recording.at).world
    commands: dict[str, CommandDefinition] = {
        definition.name: definition for host in recording.hosts for definition in host.commands
    }
    definitions = read_triggers(written or trigger_files(files), world.schema, commands)
    engine = Engine(world, zone=local_zone())
    engine.load(definitions, commands, recording.at)
    known = [definition.name for definition in definitions]
    if name and name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"Did you mean '{near[0]}'?" if near else f"There are: {', '.join(known) or 'none'}."
        raise EncampError(Code.USAGE, f"There is no trigger '{name}' in these files.", hint)
    return [
        judged
        for one in ([name] if name else known)
        for judged in engine.test(one, recording.at) or [_about_nothing(engine, one, recording.at)]
    ]


def _about_nothing(engine: Engine, name: str, now: float) -> Judged:
    """What is said of a trigger about machines where there is none: left out it would be missed."""
    reason = f"there is no {engine.triggers[name].expression.about} to judge it for"
    return Judged(trigger=name, at=now, judgement=Judgement.FALSE, reason=reason)


def _live() -> Recording:
    from encamp.cli.asking import asked_one

    return asked_one(AskRecording(), Recording)


def _recorded(path: Path) -> Recording:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Recording)
    except OSError as error:
        raise EncampError(
            Code.INPUT_MISSING, f"The recorded site {path} cannot be read: {error.strerror}."
        ) from error
    except msgspec.DecodeError as error:
        raise EncampError(
            Code.CORRUPT,
            f"{path} is not a recorded site: {error}.",
            "'encamp site record > FILE' makes one.",
        ) from error


def trigger_files(chosen: list[Path]) -> list[tuple[Source, bytes]]:
    """The files with triggers that somebody has named, or else the site's."""
    if not chosen:
        files = read_files(places.look(definition_places("triggers")))
        if not files:
            raise EncampError(
                Code.INPUT_MISSING,
                f"There are no triggers in {places.daemon_directory()}.",
                "Write triggers.yaml there, or name a file with --triggers.",
            )
        return files
    chosen = list(dict.fromkeys(path.absolute() for path in chosen))
    found = places.look([places.Place(str(path), Level.HERE) for path in chosen])
    files = places.read(found, anybody=True)
    for path, entry in zip(chosen, found, strict=True):
        if entry.status is None or entry.refused:
            reason = entry.refused or f"{path} is not there."
            raise EncampError(Code.INPUT_MISSING, reason, "Name a file with triggers.")
    return files
