"""What a shard remembers beside its jobs: plain data and counters. No rules, and no commands."""
