"""Which jobs a worker takes, from which of its queues, and where they wait for a slot."""
