"""Reading shards as Spark tables and streams. Most of it works without Spark."""
