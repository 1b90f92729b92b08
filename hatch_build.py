"""Compiles Encamp's C programs when it is installed or packed, and puts them into the wheel."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompilePrograms(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        for makefile in Path(self.root).glob("src/encamp/*/*/Makefile"):
            subprocess.run(["make", "-C", makefile.parent], check=True)
        # Any Python will do, but only this kind of machine.
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"
