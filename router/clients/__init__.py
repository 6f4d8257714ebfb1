"""Clients: their connections, what they may do, and what becomes of their commands."""
