"""One SQLite file, one writer: the only part of a shard that knows SQL."""
