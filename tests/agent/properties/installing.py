"""Installing a package of plug-ins as an installer would: a module and what is known about it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from encamp.agent.properties.plugin import GROUP


def install(directory: Path, module: str, source: str, plugins: dict[str, str]) -> None:
    known = directory / f"{module}-1.0.dist-info"
    known.mkdir(parents=True)
    (directory / f"{module}.py").write_text(source)
    (known / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    entries = "".join(f"{name} = {value}\n" for name, value in plugins.items())
    (known / "entry_points.txt").write_text(f"[{GROUP}]\n{entries}")


@contextmanager
def installed(directory: Path, module: str, source: str, plugins: dict[str, str]) -> Iterator[None]:
    """The same for this process, and not longer than the block lasts."""
    install(directory, module, source, plugins)
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))
        sys.modules.pop(module, None)
