"""The store: a PostgreSQL database that keeps the shards' logs, so that the jobs outlive any machine.

This package has the tables, and the operations that need only the tables: make, check, describe, trim, keep
snapshots.  `shardproc.replication` knows what the records of a log mean.
"""
