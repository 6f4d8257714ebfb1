"""Everything that changes a job's state. `transitions` has the moves, and begins with their table."""
