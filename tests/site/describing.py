"""Environments that a test describes for itself, in a file of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

Describe = Callable[[str], dict[str, str]]
"""Takes YAML and gives the variables that let `encamp` find it."""


def describer(directory: Path) -> Describe:
    config = directory / "config"

    def describe(text: str) -> dict[str, str]:
        config.mkdir(mode=0o700, exist_ok=True)
        (config / "environments.yaml").write_text(text)
        return {"ENCAMP_USER_CONFIG": str(config)}

    return describe
