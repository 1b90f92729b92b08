"""Whose machine something is, as limits and shares ask."""

from __future__ import annotations

from typing import NamedTuple

from encamp.model.request import Request


class Counted(NamedTuple):
    owner: str
    groups: tuple[str, ...]
    environment: str
    classes: tuple[str, ...]


def counted(request: Request) -> Counted:
    return Counted(request.owner, request.groups, request.environment, request.classes)
