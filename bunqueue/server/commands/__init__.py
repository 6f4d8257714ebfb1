"""Commands, workers and figures that no shard handles. The router and embedded mode share this code."""
