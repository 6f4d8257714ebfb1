"""Commands that look and change nothing: jobs, counts, numbers, logs, events, and why a job waits."""
