"""Tables and records on a terminal. Loaded only there: rich takes longer to load than a command takes to
run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from bunqueue import text as readable

from ...protocol.encoded import for_people
from . import terminal
from .output import Column, Kind, Row, encoded

STATES = {
    "active": "cyan",
    "completed": "green",
    "failed": "red",
    "cancelled": "red",
    "delayed": "yellow",
    "stale": "red",
    "paused": "yellow",
    "open": "red",
    "half-open": "yellow",
    "closed": "green",
    "ok": "green",
    "warning": "yellow",
    "problem": "red",
}
_RIGHT = (Kind.NUMBER, Kind.SPAN, Kind.SIZE)
_UNCUT = (Kind.ID, Kind.STATE, Kind.TIME, *_RIGHT)
NONE = "-"
LEAST = 12
"""The minimum width to which texts and data are cut, in characters."""
LEAST_PROSE = 30
"""The minimum width in which a sentence is wrapped."""
GAP = 2


def table(rows: Sequence[Row], columns: Sequence[Column]) -> None:
    """Print a table with a line for each row. Columns on the right that do not fit are left out."""
    console = terminal.console()
    cells = [[cell(row.get(column.name), column.kind) for column in columns] for row in rows]
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    widths = _widths(cells, columns, console.width)
    for column, width in zip(columns, widths, strict=False):
        right = column.kind in _RIGHT
        folded = column.kind is Kind.PROSE
        drawn.add_column(
            column.heading,
            justify="right" if right else "left",
            no_wrap=not folded,
            width=width,
            overflow="fold" if folded else "ellipsis",
        )
    for each in cells:
        drawn.add_row(*each[: len(widths)])
    console.print(drawn)


def _widths(cells: Sequence[Sequence[Text]], columns: Sequence[Column], room: int) -> list[int]:
    """The widths of the columns that fit: as wide as needed. If that is too much, texts are cut."""
    needed = [
        max(len(column.heading), *(row[number].cell_len for row in cells)) + GAP
        for number, column in enumerate(columns)
    ]
    least = [
        width if column.kind in _UNCUT else min(width, _least(column.kind) + GAP)
        for width, column in zip(needed, columns, strict=True)
    ]
    while len(least) > 1 and sum(least) > room:
        least.pop()
    widths = needed[: len(least)]
    while sum(widths) > max(room, sum(least)):
        widest = max(range(len(widths)), key=lambda number: widths[number] - least[number])
        widths[widest] -= 1
    return [width - GAP for width in widths]


def _least(kind: Kind) -> int:
    return LEAST_PROSE if kind is Kind.PROSE else LEAST


def record(row: Row, columns: Sequence[Column]) -> None:
    """Print a line for each field that has a value."""
    drawn = Table.grid(padding=(0, 2, 0, 0))
    drawn.add_column(style="bold", no_wrap=True)
    drawn.add_column(overflow="fold")
    for column in columns:
        value = row.get(column.name)
        if value not in (None, [], {}):
            drawn.add_row(column.heading, cell(value, column.kind))
    terminal.console().print(drawn)


def cell(value: Any, kind: Kind) -> Text:
    """A value formatted for people."""
    if value is None:
        return Text(NONE, style="dim")
    if kind is Kind.FLAG:
        return Text("yes" if value else "no", style="" if value else "dim")
    if kind is Kind.STATE:
        return Text(str(value), style=STATES.get(str(value), ""))
    return Text(readable.printable(_text(value, kind)))


def _text(value: Any, kind: Kind) -> str:
    value = for_people(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        shown = {
            Kind.NUMBER: readable.number_of,
            Kind.TIME: readable.time_of,
            Kind.SPAN: readable.span_of,
            Kind.SIZE: readable.size_of,
        }.get(kind)
        if shown is not None:
            return shown(value)
    if kind is Kind.DATA or not isinstance(value, str):
        if kind is Kind.COUNTS:
            return ", ".join(f"{name} {count:,}" for name, count in value.items() if count) or "none"
        return ", ".join(value) if _is_texts(value) else encoded(value)
    return value


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
