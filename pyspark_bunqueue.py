"""Where Spark finds the format ``bunqueue`` on its own: in modules whose names begin with ``pyspark_``."""

from bunqueue.spark.source import BunqueueDataSource as DefaultSource

__all__ = ["DefaultSource"]
