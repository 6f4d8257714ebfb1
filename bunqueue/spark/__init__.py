"""bunqueue for Spark: ``spark.read.format("bunqueue")`` on data folders.  It comes with ``bunqueue[spark]``.

Importing this package is cheap and works without Spark: `read.tables`, `read.reading` and the modules that
they import do not depend on it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import EventsLost, NotReadable, UnreadableShard
from .sessions.java import NoJava
from .sink.enqueue import enqueue
from .sink.summary import WriteSummary, read_summaries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .read.snapshots import copy, snapshot
    from .sessions.priority import standing_back
    from .sessions.start import spark_session

__all__ = [
    "EventsLost",
    "NoJava",
    "NotReadable",
    "UnreadableShard",
    "WriteSummary",
    "copy",
    "enqueue",
    "read_summaries",
    "register",
    "snapshot",
    "spark_session",
    "standing_back",
]

_LATER = {  # these need Arrow or Spark
    "copy": "read.snapshots",
    "snapshot": "read.snapshots",
    "spark_session": "sessions.start",
    "standing_back": "sessions.priority",
}


def register(spark: SparkSession) -> None:
    """Register the format ``bunqueue`` in a session.  Sessions made by `spark_session` already have it."""
    from .source import BunqueueDataSource

    spark.dataSource.register(BunqueueDataSource)


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in ("pyarrow", "pyspark"):
            raise ModuleNotFoundError(
                f"{error.msg}: pip install 'bunqueue[spark]'", name=error.name
            ) from None
        raise
