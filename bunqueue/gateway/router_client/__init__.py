"""The gateway's connections to the router."""
