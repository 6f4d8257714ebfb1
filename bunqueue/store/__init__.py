"""The store: a PostgreSQL database that keeps the shards' logs, so that the jobs outlive any machine.

Here are its tables and what can be done with them alone: make, check, describe, trim, keep snapshots.  What
the records of a log mean belongs to `shardproc.replication`.
"""
