"""Reading from mmdebstrap's output how far it is."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """One of mmdebstrap's stages: the line that begins it, and its part of the whole."""

    begins: str
    start: float
    end: float
    steps: int
    """Lines it prints for each package."""


STAGES = (
    Stage("running apt-get update", 0.0, 0.08, 0),
    Stage("downloading packages with apt", 0.08, 0.2, 1),
    Stage("extracting archives", 0.2, 0.35, 0),
    Stage("installing essential packages", 0.35, 0.62, 2),
    Stage("installing remaining packages", 0.62, 0.94, 3),
    Stage("cleaning package lists", 0.94, 0.96, 0),
    Stage("creating tarball", 0.96, 1.0, 0),
)

PACKAGES = re.compile(r"\d+ upgraded, (\d+) newly installed")
STEP = re.compile(r"(Get:\d+|Unpacking|Setting up) ")


class Installing:
    """The fraction done, after each line."""

    def __init__(self) -> None:
        self.stage = STAGES[0]
        self.packages = 0
        self.steps = 0

    def read(self, line: str) -> float | None:
        for stage in STAGES:
            if stage.begins in line:
                self.stage, self.steps = stage, 0
                return stage.start
        if found := PACKAGES.match(line):
            self.packages = int(found[1])
            return None
        if self.stage.steps == 0 or self.packages == 0 or not STEP.match(line):
            return None
        self.steps += 1
        done = min(1.0, self.steps / (self.packages * self.stage.steps))
        return self.stage.start + (self.stage.end - self.stage.start) * done
