"""Small sites for the tests of the simulation."""

from __future__ import annotations

from pathlib import Path

from encamp.sim.site import SimulatedSite
from encamp.sim.site_file import read_site

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples" / "simulation"

SMALL = """
hosts:
  node:
    count: 2
    cpus: 4
    memory: 8G
environments:
  one:
    memory: 1G
    image: 122070.3125K
    clone: 0.5s
    boot: 4s
    template: 6s
  other:
    memory: 1G
    templates: false
"""
"""An image takes a second to be copied there."""


def described(directory: Path, text: str = SMALL, name: str = "site.yaml") -> SimulatedSite:
    path = directory / name
    path.write_text(text)
    return read_site(path)
