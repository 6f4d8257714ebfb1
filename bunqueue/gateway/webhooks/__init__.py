"""Webhooks: events of the logs, sent to receivers over HTTP."""
