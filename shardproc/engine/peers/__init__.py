"""What shards ask of each other: ids, dependencies, flows and families over several shards."""
