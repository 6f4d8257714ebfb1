"""Converts rows to jobs: the meaning of each column, and the errors of a row."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from bunqueue.client.connection.options import shown, unfit
from bunqueue.client.options import checks
from bunqueue.client.options.job import JobOptions, check_size, job_data, wire_fields
from bunqueue.errors import OptionError, PayloadError
from bunqueue.model.names import hint
from bunqueue.protocol.commands.core import JobFields

from .ids import row_id
from .settings import SinkSettings

DATA, ID = "data", "job_id"
_MORE_THAN_A_VALUE = {"at", "dedup", "debounce", "repeat", "failure_policy", "unique", ID}
OPTIONS = tuple(name for name in JobOptions.__annotations__ if name not in _MORE_THAN_A_VALUE)
COLUMNS = ("queue", "name", DATA, ID, *OPTIONS)
"""The columns that a DataFrame may have. The options are those of `JobOptions`."""

Row = Mapping[str, Any]


class RowJob(NamedTuple):
    """A job made from a row."""

    queue: str
    fields: JobFields
    row: Row

    @property
    def id(self) -> str:
        assert self.fields.job_id is not None
        return self.fields.job_id


def check_columns(columns: Collection[str], settings: SinkSettings) -> None:
    """Raise OptionError if no jobs can be made from these columns."""
    if DATA not in columns:
        raise OptionError(
            f"there is no column data for the data of the jobs, but {', '.join(columns) or 'no column'}; "
            "put what belongs to it into one: df.select(F.struct('*').alias('data'))"
        )
    for column in columns:
        if column not in COLUMNS:
            raise OptionError(
                f"a job has nothing called {shown(column)}; {hint(column, sorted(COLUMNS))}; what belongs to "
                "its data goes into the column data: F.struct(...).alias('data')"
            )
    for name in ("queue", "name"):
        if name not in columns and getattr(settings, name) is None:
            raise unfit(name, f"neither an option nor a column says it; give .option({name!r}, ...)")


class RowPlan:
    """Makes jobs from the rows of one write."""

    def __init__(self, columns: Collection[str], settings: SinkSettings, write_id: str) -> None:
        self._settings = settings
        self._write_id = write_id
        self._options = [name for name in OPTIONS if name in columns]
        self._own_ids = ID in columns

    def job(self, row: Row) -> RowJob:
        """The job of a row. Raises OptionError or PayloadError, which say what is wrong with the row."""
        queue = checks.queue_name(self._text(row, "queue"))
        name = checks.job_name(self._text(row, "name"))
        options = {name: value for name in self._options if (value := row[name]) is not None}
        data = self._data(row[DATA])
        own = row[ID] if self._own_ids else None
        payload = job_data(data, "data", declared=True)  # according to the schema of the frame
        if own is None:
            own = row_id(self._write_id, queue, name, options, data)
        fields = wire_fields({**options, ID: _id(own)}, {})
        check_size(payload, fields, "data")
        return RowJob(queue, JobFields(name=name, data=payload, **fields), row)

    def _text(self, row: Row, column: str) -> str:
        """The value of a column, or of the option that replaces it."""
        value = row.get(column)
        if value is None:
            value = getattr(self._settings, column)
        if value is None:
            raise OptionError(f"{column}: the row has none, and there is no option {column}")
        return value  # type: ignore[no-any-return]  # of whatever type; it is checked next

    def _data(self, value: Any) -> Any:
        if value is None or self._settings.data_format == "value":
            return value
        try:
            if self._settings.data_format == "json":
                return msgspec.json.decode(value)
            msgspec.msgpack.decode(value)  # the server stores it unchecked, so check it here
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            what = "JSON" if self._settings.data_format == "json" else "MessagePack"
            text = f"data: {shown(value)} is no {what} ({error})"
            raise PayloadError(text, field="data", value=shown(value), bound=what) from None
        return Raw(value)


def _id(value: object) -> object:
    """Numbers may also be ids: they are keys in many tables."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value
