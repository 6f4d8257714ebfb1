"""Schedules: their commands, their runs, and what became of the last one."""
