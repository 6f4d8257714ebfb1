"""Spark sessions: finding Java, and yielding to a server on the same machine."""
