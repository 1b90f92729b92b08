"""Copying files between the host and a machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from encamp.guest.channel import Channel
from encamp.model.job import Copy, User


@dataclass
class Copied:
    """What was copied, and what was not."""

    files: int = 0
    missing: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        return f"{self.files} files"


async def copy_in(
    channel: Channel, copies: Sequence[Copy], directory: str, owner: User
) -> Copied:
    raise NotImplementedError


async def copy_out(
    channel: Channel, copies: Sequence[Copy], directory: str, owner: User
) -> Copied:
    raise NotImplementedError
