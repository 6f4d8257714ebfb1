"""One SQLite file, one writer: the only place of a shard that knows SQL."""
