"""The way to an engine: addresses, TLS, connections, pools and replies. Nothing about queues or workers."""
