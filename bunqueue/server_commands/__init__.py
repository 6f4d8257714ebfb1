"""What no shard answers: the list of workers, and the numbers of the whole server."""
