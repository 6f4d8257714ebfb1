"""Reaching an engine: addresses, TLS, connections, pools, replies. Knows nothing about queues or workers."""
