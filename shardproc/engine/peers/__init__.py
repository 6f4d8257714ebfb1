"""What shards ask each other: ids, dependencies, flows and families across shards."""
