"""Spark sessions: Java, and standing back for a server on the same machine."""
