"""One process per core: owns its queues, its heaps and its one SQLite file."""
