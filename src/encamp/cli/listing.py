"""Lists that stay readable on a narrow terminal: what finds no room beside stands below."""

from __future__ import annotations

from collections.abc import Sequence

from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from encamp.cli.cleaning import clean
from encamp.cli.tables import console, room, show, table

INDENT = 4
GAP = 3


def show_list(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, below: Sequence[str]
) -> None:
    """A table. If it is too wide, columns of `below`, the first of them first, come into lines of
    their own under each row. Only what is too wide even then is folded."""
    for moved in range(len(below) + 1):
        beside = [column for column in columns if column not in below[:moved]]
        made = _table(columns, rows, beside, whole=beside)
        if room(made) >= 0:
            _show_both(made, columns, rows, below[:moved])
            return
    show(_table(columns, rows, columns, whole=()))


def _table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    beside: Sequence[str],
    whole: Sequence[str],
) -> Table:
    made = table(*beside, whole=whole)
    for row in rows:
        made.add_row(*(cell for head, cell in zip(columns, row, strict=True) if head in beside))
    return made


def _show_both(
    made: Table, columns: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[str]
) -> None:
    out = console()
    lines = out.render_lines(made, pad=False)
    heads = len(lines) - len(rows)
    for place, line in enumerate(lines):
        out.print(Segments([*line, Segment.line()]), end="")
        if place >= heads:
            cells = zip(columns, rows[place - heads], strict=True)
            for text in _packed([(head, cell) for head, cell in cells if head in below], out.width):
                out.print(Padding(text, (0, 0, 0, INDENT), expand=False))


def _packed(cells: Sequence[tuple[str, str]], width: int) -> list[Text]:
    """As many in one line as fit."""
    lines: list[Text] = []
    for head, cell in cells:
        if cell:
            part = Text.assemble((f"{head}: " if head else "", "dim"), clean(cell))
            if lines and INDENT + lines[-1].cell_len + GAP + part.cell_len <= width:
                lines[-1].append(" " * GAP).append_text(part)
            else:
                lines.append(part)
    return lines
