"""The domain model: plain data and pure functions, shared by every process."""
