"""What runs the SQL of the figures: DuckDB on this machine, or Spark (`bunqueue.analytics.engines`).

The text is the same for both.  What they call by different names is below.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from bunqueue.spark.read.conditions import Condition
from bunqueue.spark.read.folders import Shard


class Folders(NamedTuple):
    """Data folders, a name for the machine of each, and their shards.  ``skips``: those that could not be
    read are not among these."""

    paths: Sequence[str]
    hosts: Sequence[str]
    shards: Sequence[Shard]
    skips: bool = False


class Engine(Protocol):
    """Named tables, and queries of them.

    In addition to standard SQL, its SQL has ``get_json_object(text, path)``, ``from_json(text,
    'array<string>')``, ``unix_millis(time)``, ``size(array)``, ``explode(array)``, ``try_element_at(array,
    number)`` and ``max_by(value, order)``.
    """

    def percentiles(self, value: str) -> str:
        """SQL for an array of `numbers.PERCENTILES`."""

    def view(self, name: str, sql: str) -> None:
        """Give a query a name."""

    def keep(self, name: str, sql: str) -> None:
        """The same, and compute it only once."""

    def keep_with_patterns(self, name: str, sql: str) -> None:
        """The same for a query with a column ``error``, with `bunqueue.model.errors_alike.pattern_of` it as
        ``pattern``."""

    def give(self, name: str, table: pa.Table) -> None:
        """A small table."""

    def folders(
        self,
        name: str,
        table: str,
        columns: Sequence[str],
        folders: Folders,
        conditions: Sequence[Condition] = (),
        where: str = "true",
    ) -> None:
        """A table of data folders.  Only rows that meet ``conditions`` are read, and only those for which
        ``where`` is true are kept."""

    def parquet(self, name: str, files: Sequence[Path], schema: pa.Schema) -> None:
        """A view of the files of a lake, with the columns of the schema, null where a file lacks one."""

    def table(self, sql: str) -> pa.Table:
        """The result of a query."""

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a small result."""

    def close(self) -> None:
        """Release everything that is kept."""
