"""Keeps the locks of running jobs alive, and detects a blocked event loop."""
