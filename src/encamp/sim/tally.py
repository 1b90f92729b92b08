"""What really happened on a simulated site, whatever its manager believes."""

from __future__ import annotations


class Tally:
    def __init__(self) -> None:
        self.machines_made = 0
        self.template_hits = 0
        """Machines that were cloned from a template that was there already."""
        self.templates_made = 0
        self.booted = 0
        self.images_copied = 0
        self.bytes_copied = 0
        self.claims = 0
        self.refusals = 0
        self.beginnings: dict[str, dict[str, float]] = {}
        """When each command of each request began, by its id."""
        self.endings: dict[str, dict[str, float]] = {}
        """When each ran to its end."""
        self.began_last: list[str] = []
        """Requests of which a command has begun since somebody looked."""

    def began(self, request: str, command: str, now: float) -> None:
        self.beginnings.setdefault(request, {})[command] = now
        self.began_last.append(request)

    def finished(self, request: str, command: str, now: float) -> None:
        self.endings.setdefault(request, {})[command] = now
