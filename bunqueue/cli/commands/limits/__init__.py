"""Limits of queues and groups: rate, concurrency and stall times."""
