"""Draws the picture of `encamp top` in the documents.

Run it with `python -m tests.cli.top_picture docs/top.svg`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console

from encamp.cli.top_view import View
from tests.cli.sample_site import Site

FORM = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px;
  line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Like rich's own form, without fonts from elsewhere."""


def draw(target: Path, width: int = 112, height: int = 35) -> None:
    with open("/dev/null", "w") as nowhere:
        console = Console(
            record=True, width=width, height=height, file=nowhere, force_terminal=True
        )
        now = time.mktime((2026, 5, 4, 9, 41, 12, 0, 0, -1))
        console.print(View(Site(now).snapshot, keys="q leaves"), height=height)
        target.write_text(console.export_svg(title="encamp top", code_format=FORM, unique_id="top"))


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
