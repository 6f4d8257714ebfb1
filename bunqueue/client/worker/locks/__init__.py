"""Keeps the locks of jobs alive while these run, and notices when an event loop stands still."""
