"""The options of the source: their names, their allowed values, and what they select.

Spark's readers ignore the case of options and give all values as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

import msgspec

from bunqueue.client.connection.options import refused, unfit
from bunqueue.errors import OptionError
from bunqueue.model.events import NAMES as KINDS
from bunqueue.model.names import hint
from bunqueue.model.states import STORED

from .given import lowered, one_of, whole
from .read.conditions import MAX_IN, OPERATORS, Condition, clause_of
from .read.malformed import MODES, Mode
from .read.reading import Selection
from .read.tables import DEFAULT_TABLE, TABLES, Column, Table

ROWS_PER_TASK = 250_000  # about a second of work; a task costs some hundredths of a second
EVENTS_PER_BATCH = 500_000  # of each micro-batch of a stream, over all shards

READING = (
    *("path", "paths", "table", "columns", "hosts", "queues", "states", "kinds", "since", "until"),
    *("timeColumn", "unreadable", "mode", "filters", "rowsPerTask"),
)
STREAMING = ("maxEventsPerBatch", "startAt", "failOnDataLoss")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read."""

    paths: tuple[str, ...]
    table: Table
    columns: tuple[Column, ...]
    hosts: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    skip: bool = False
    mode: Mode = "PERMISSIVE"
    rows_per_task: int = ROWS_PER_TASK

    def selection(self, now: int) -> Selection:
        """The rows and columns, of this moment (epoch ms)."""
        return Selection(self.table, self.columns, self.conditions, now, self.mode)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a stream reads.  ``start`` is "earliest", "latest" or a time."""

    max_events: int = EVENTS_PER_BATCH
    start: str | datetime = "earliest"
    fail_on_loss: bool = True


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read.  Raises OptionError, which names the wrong one."""
    options = lowered(given, (*READING, *STREAMING), "the source bunqueue")
    table = _table(options.get("table", DEFAULT_TABLE))
    return ReadOptions(
        _paths(options),
        table,
        _columns(table, options.get("columns")),
        _names("hosts", options),
        _conditions(table, options),
        one_of(options, "unreadable", {"fail": False, "skip": True}),
        one_of(options, "mode", {mode: mode for mode in MODES}),
        whole(options, "rowsPerTask", ROWS_PER_TASK),
    )


def refuse(given: Mapping[str, str], names: Iterable[str], why: str) -> None:
    """Raise OptionError if one of these options is given."""
    here = {name.lower() for name in given}
    for name in names:
        if name.lower() in here:
            raise unfit(name, f"{why}; leave it out")


def stream_options(given: Mapping[str, str]) -> StreamOptions:
    """The options that only streams have."""
    refuse(given, ("unreadable", "rowsPerTask"), "streams have no such option")
    options = {name.lower(): value for name, value in given.items()}
    start = options.get("startat", "earliest")
    return StreamOptions(
        whole(options, "maxEventsPerBatch", EVENTS_PER_BATCH),
        start if start in ("earliest", "latest") else moment("startAt", start),
        one_of(options, "failOnDataLoss", {"true": True, "false": False}),
    )


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    several = options.get("paths")
    if several is not None:
        return tuple(json.loads(several))
    return (options["path"],) if options.get("path") else ()


def _table(name: str) -> Table:
    table = TABLES.get(name.lower())
    if table is None:
        raise OptionError(f"table: there is no {name!r}; it is one of {', '.join(TABLES)}")
    return table


def _columns(table: Table, text: str | None) -> tuple[Column, ...]:
    return table.default_columns if text is None else columns_named(table, _split("columns", text))


def columns_named(table: Table, names: tuple[str, ...]) -> tuple[Column, ...]:
    """The columns with these names.  Raises OptionError for an unknown or repeated name."""
    found = []
    for name in names:
        column = table.column(name)
        if column is None:
            known = [column.name for column in table.columns]
            raise OptionError(f"columns: {table.name} has no column {name!r}; {hint(name, known)}")
        if column in found:
            raise OptionError(f"columns: {name} is named twice")
        found.append(column)
    return tuple(found)


def _conditions(table: Table, options: Mapping[str, str]) -> tuple[Condition, ...]:
    conditions = []
    for option, column in (("queues", "queue"), ("states", "state"), ("kinds", "kind")):
        names = _names(option, options)
        if names:
            if table.column(column) is None:
                raise OptionError(f"{option}: the table {table.name} has no column {column}; leave it out")
            conditions.append(Condition(column, "in", list(names)))
    for name in _names("states", options):
        if name not in STORED:
            raise OptionError(f"states: there is no state {name!r}; they are {', '.join(STORED)}")
    for name in _names("kinds", options):
        if name not in KINDS:
            raise OptionError(f"kinds: there is no kind {name!r}; {hint(name, KINDS)}")
    column = _time_column(table, options)
    return (*conditions, *_range(column, options), *_filters(table, options))


def _filters(table: Table, options: Mapping[str, str]) -> list[Condition]:
    """The conditions of the option ``filters``, all of which can be checked where rows are read."""
    text = options.get("filters")
    if text is None:
        return []
    try:
        given = msgspec.json.decode(text, type=list[tuple[str, str, Any]])
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise OptionError(
            f"filters: {text[:80]!r} is no list of conditions ({error}); give JSON such as "
            '[["state", "=", "failed"]]'
        ) from None
    return [_filter(table, *one) for one in given]


def _filter(table: Table, name: str, how: str, value: Any) -> Condition:
    column = table.column(name)
    if column is None:
        known = [column.name for column in table.columns]
        raise OptionError(f"filters: {table.name} has no column {name!r}; {hint(name, known)}")
    if how not in OPERATORS:
        raise OptionError(f"filters: there is no operator {how!r}; they are {', '.join(OPERATORS)}")
    values = value if how == "in" and isinstance(value, list) else [value]
    if column.type == "timestamp":
        values = [moment("filters", each) if isinstance(each, str) else each for each in values]
    if value is None and how == "=":
        condition = Condition(column.name, "null")
    else:
        condition = Condition(column.name, how, values if how == "in" else values[0])
    if clause_of(table, condition) is None:
        raise OptionError(
            f"filters: {table.name}.{column.name} ({column.type}) cannot be compared with {value!r} by "
            f"{how!r} where it is read; filter the frame instead, with where()"
        )
    return condition


def _range(column: str, options: Mapping[str, str]) -> list[Condition]:
    found = []
    if "since" in options:
        found.append(Condition(column, ">=", moment("since", options["since"])))
    if "until" in options:
        found.append(Condition(column, "<", moment("until", options["until"])))
    if len(found) == 2 and found[0].value >= found[1].value:
        raise OptionError(f"since: {options['since']!r} is not before until, which is {options['until']!r}")
    return found


def _time_column(table: Table, options: Mapping[str, str]) -> str:
    name = options.get("timecolumn", table.time)
    column = table.column(name)
    if column is None or column.type != "timestamp":
        times = ", ".join(column.name for column in table.columns if column.type == "timestamp")
        raise OptionError(f"timeColumn: {table.name} has no time {name!r}; it has {times}")
    return column.name


def _names(option: str, options: Mapping[str, str]) -> tuple[str, ...]:
    text = options.get(option)
    if text is None:
        return ()
    names = _split(option, text)
    if len(names) > MAX_IN:
        raise unfit(option, f"{len(names)} names are more than {MAX_IN}; read all and filter in Spark")
    return names


def _split(option: str, text: str) -> tuple[str, ...]:
    """Names separated by commas, or a JSON list if a name contains a comma."""
    if text.lstrip().startswith("["):
        try:
            parts = json.loads(text)
        except ValueError:
            parts = None
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise refused(option, text, "is no JSON list of names")
    else:
        parts = [part.strip() for part in text.split(",")]
    if not parts or not all(parts):
        raise refused(option, text, "has no name, or an empty one; separate names by commas")
    return tuple(parts)


def moment(option: str, text: str, zone: tzinfo = UTC, more: str = "") -> datetime:
    """Parse a time in ISO 8601, in ``zone`` unless it has an offset.  Raises OptionError for anything else;
    ``more`` names other allowed forms for the error."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        why = f"is no time; write it as 2026-01-31 or 2026-01-31T12:00:00+01:00{more}"
        raise refused(option, text, why) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=zone)
