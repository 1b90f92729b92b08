"""Descriptions written in tests, and what comes of them."""

from __future__ import annotations

from textwrap import dedent

from encamp.describe.environments import shipped_library
from encamp.describe.library import Library, load
from encamp.describe.sources import Level, Source
from encamp.model.environment import Environment
from encamp.model.recipe import Recipe


def source(name: str, level: Level, rank: int) -> Source:
    return Source(name, level, rank, "/here")


def library(*texts: str, level: Level = Level.HERE) -> Library:
    """What texts describe, alone; the later ones are files after the earlier ones."""
    files = [
        (source(f"{number}.yaml", level, number), dedent(text).encode())
        for number, text in enumerate(texts)
    ]
    return load(files)


def over_shipped(*texts: str, level: Level = Level.USER) -> Library:
    """What texts describe, on top of what Encamp ships."""
    made = shipped_library()
    for number, text in enumerate(texts, 1):
        made.add(source(f"{number}.yaml", level, number), dedent(text).encode())
    return made


def environments(*texts: str, level: Level = Level.HERE) -> dict[str, Environment]:
    """All environments of texts that must be in order."""
    made = library(*texts, level=level)
    found = made.all()
    assert not made.mistakes, [str(mistake) for mistake in made.mistakes.found]
    return found


def one(text: str, name: str = "it", *, level: Level = Level.HERE) -> Environment:
    return environments(text, level=level)[name]


def mistakes(*texts: str, level: Level = Level.HERE) -> list[str]:
    """All mistakes of texts, as a person is told."""
    made = library(*texts, level=level)
    made.all()
    return [str(mistake) for mistake in sorted(made.mistakes.found)]


def recipe(environment: Environment) -> Recipe:
    assert isinstance(environment.image, Recipe)
    return environment.image
