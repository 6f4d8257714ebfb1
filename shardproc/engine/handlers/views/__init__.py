"""Read-only commands: jobs, counts, figures, logs, events, and why a job waits."""
