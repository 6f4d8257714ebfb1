"""What no shard answers: commands, workers, figures. The router and embedded mode share it."""
