"""The rules: what happens to a job.  No sockets, files, clock, randomness, asyncio or logging."""
