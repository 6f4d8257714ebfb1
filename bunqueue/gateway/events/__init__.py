"""Live events for browsers and programs: reading the log, the feed, SSE and WebSockets."""
