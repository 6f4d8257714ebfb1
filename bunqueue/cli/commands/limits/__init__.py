"""How fast, how many, and for how long: limits of queues and groups."""
