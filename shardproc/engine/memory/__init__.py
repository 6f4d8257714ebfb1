"""The memory of a shard apart from its jobs: plain data and counters.  No rules, and no commands."""
