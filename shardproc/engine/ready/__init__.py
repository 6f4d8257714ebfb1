"""Which job of a queue is next: order, delays, limits and groups.  Nothing here changes a job's state."""
