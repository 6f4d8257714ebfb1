"""Live events for browsers and programs: the log that is read, the feed, SSE and WebSockets."""
