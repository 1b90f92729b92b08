"""What a changed recipe costs, compared with building its image from nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from bench.ground import Ground
from bench.measure import Series, paired_ratio, rounds, stopwatch
from bench.report import Figure, Goal, Report
from encamp.describe.shipped import SHIPPED
from encamp.home import Home
from encamp.images.store import ImageStore
from encamp.model.recipe import Recipe

TITLE = "a recipe with one more package, against a full build"

EXPLANATION = """
*From nothing*: a full build in an empty home. Lists of packages, packages and kernel come from the
host's mirror, the tree from mmdebstrap; for a layer, what it lies over is built as well. *With
everything fetched*: the same once more, with lists, packages and kernel in the cache, but without
images and without any step of the build. *One more package*: the recipe with `file` added to the
end of its list, in the home of the full build, where steps, packages and lists (fetched minutes
ago) are kept; what it fetches is that package. *Another first package* has to repeat all that the
recipe adds, over the same foundation. Both sides of a comparison follow one another in one round.
"""

NAMES = ("debian12", "scientific")
ADDED = "file"
ROUNDS = 3
BOUND = 0.25


def measure(ground: Ground, *, quick: bool) -> Report:
    report = Report()
    for name in NAMES[:1] if quick else NAMES:
        measure_one(report, SHIPPED[name], ground.scratch, 1 if quick else ROUNDS)
    return report


def measure_one(report: Report, recipe: Recipe, scratch: Path, count: int) -> None:
    name = recipe.name
    full = Series(f"`{name}` from nothing", "ms")
    fetched = Series(f"`{name}` with everything fetched", "ms")
    added = Series(f"`{name}` with one more package", "ms")
    other = Series(f"`{name}` with another first package", "ms")
    more = msgspec.structs.replace(recipe, packages=(*recipe.packages, ADDED))
    first = msgspec.structs.replace(recipe, packages=(ADDED, *recipe.packages))
    for number in rounds(f"building {name}", count):
        home = Home(scratch / f"home-{name}-{number}").prepare()
        images = ImageStore(home, shared=None)
        with stopwatch(full):
            images.ensure(recipe)
        with stopwatch(added):
            images.ensure(more)
        with stopwatch(other):
            images.ensure(first)
        shutil.rmtree(home.images)
        shutil.rmtree(home.cache / "steps")
        home.prepare()
        with stopwatch(fetched):
            images.ensure(recipe)
        shutil.rmtree(home.root)
    goal = (Goal.AT_MOST, BOUND)
    report.figures += [
        Figure(f"`{name}`: one more package / from nothing", paired_ratio(added, full), goal=goal),
        Figure(
            f"`{name}`: one more package / with everything fetched",
            paired_ratio(added, fetched),
            goal=goal,
        ),
        Figure(f"`{name}`: another first package / from nothing", paired_ratio(other, full)),
    ]
    report.background += [full, fetched, added, other]
