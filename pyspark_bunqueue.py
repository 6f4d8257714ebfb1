"""Where Spark looks for the format ``bunqueue`` by itself: in modules whose names begin with ``pyspark_``."""

from bunqueue.spark.source import BunqueueDataSource as DefaultSource

__all__ = ["DefaultSource"]
