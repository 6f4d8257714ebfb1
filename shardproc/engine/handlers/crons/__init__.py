"""Schedules: their commands, their runs, and the outcome of the last run."""
