"""Webhooks: events of the logs sent to others over HTTP."""
