"""Where a report's text goes: colours and tables drawn by rich on a terminal, tabs and plain lines anywhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace

from ett.event_schema import Component
from ett.report_document import STACKING, Document, Table
from ett.report_text import GLYPHS, cells
from ett.shown_text import one_line, say, shown

_COLOURS: dict[Component, str] = {
    "effective": "#4DA3FF",
    "wasted": "#FF7A33",
    "initialization": "#E69F00",
    "compilation": "#D98CB8",
    "scheduling": "#56B4E9",
    "shutdown": "#9AA5B1",
}
_BAR_CELLS = 64
_PADDING, _NARROWEST_CELL = 3, 24
_MORE = ", …"


def is_drawn(environ: Mapping[str, str]) -> bool:
    """True where rich may draw: a terminal, or FORCE_COLOR."""
    return sys.stdout.isatty() or bool(environ.get("FORCE_COLOR"))


def show(document: Document) -> None:
    """Print a document: its bar and its tables; warnings go to stderr."""
    heading = shown("   ".join([document.title, *document.facts]))
    if is_drawn(os.environ):
        _draw(document, heading)
    else:
        say(heading)
        for bar in document.bars[:1]:
            say("".join(GLYPHS[c] * n for c, n in cells(bar.ns, STACKING, _BAR_CELLS).items()))
        for table in document.tables:
            for row in (table.columns, *table.rows):
                say("\t".join(map(one_line, row)).rstrip())
    for note in document.notes:
        say(note)
    for warning in document.warnings:
        say(f"warning: {warning}", err=True)


def show_text(text: str) -> None:
    """Print a report's lines; on a terminal each component's glyphs have its colour."""
    if not is_drawn(os.environ):
        say(text)
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    by_glyph = {glyph: _COLOURS[component] for component, glyph in GLYPHS.items() if glyph not in "#-"}
    for line in shown(text).splitlines():
        coloured = Text(line)
        for index, character in enumerate(line):
            if character in by_glyph:
                coloured.stylize(by_glyph[character], index, index + 1)
        console.print(coloured)


def _draw(document: Document, heading: str) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(heading, style="bold"))
    for bar in document.bars[:1]:
        width = min(_BAR_CELLS, console.width)
        drawn = Text()
        for component, n in cells(bar.ns, STACKING, width).items():
            drawn.append(GLYPHS[component] * n, style=_COLOURS[component])
        console.print(drawn)
    for table in document.tables:
        console.print(_drawn_table(fitted(table, console.width)))


def fitted(table: Table, width: int) -> Table:
    """Return the table with as many of the last column's reasons, largest first, as have room in one line each."""
    last = len(table.columns) - 1
    if last in table.numbers:
        return table
    widths = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
    room = width - sum(widths[:last]) - _PADDING * len(table.columns)
    rows = tuple((*row[:last], _first_of(row[last], max(room, _NARROWEST_CELL))) for row in table.rows)
    return replace(table, rows=rows)


def _first_of(listed: str, room: int) -> str:
    if len(listed) <= room:
        return listed
    kept = ""
    for part in listed.split(", "):
        longer = f"{kept}, {part}" if kept else part
        if kept and len(longer) + len(_MORE) > room:
            break
        kept = longer
    return kept if kept == listed else kept + _MORE


def _drawn_table(table: Table) -> object:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(table.columns):
        drawn.add_column(name, justify="right" if index in table.numbers else "left", overflow="fold")
    for row in table.rows:
        drawn.add_row(*(Text(one_line(cell)) for cell in row))
    return drawn
