"""The commands, one module a subject. What changes a job's state stands in `lifecycle`."""
