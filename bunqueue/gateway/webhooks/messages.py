"""The contents of a webhook request: the body, and the headers that prove who sent it.  Pure."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from bunqueue.gateway.http.transcode import write_json
from bunqueue.model.names import prefix_of
from bunqueue.protocol.commands.webhooks import EVENTS
from bunqueue.protocol.namespaces import shown_event

# Kinds of events in the log, and their names in webhooks.
NAMES = dict(
    zip(("pushed", "pulled", "completed", "failed", "progress", "error-returned"), EVENTS, strict=True)
)
KINDS = {name: kind for kind, name in NAMES.items()}
TEST = "webhook.test"
SIGNATURE = "X-Bunqueue-Signature"
_OWN = ("eventType", "queue", "jobId", "timestamp", "shard", "seq")

Headers = dict[str, str]


def body_of(event: dict[str, Any], queue: str | None = None) -> bytes:
    """The body for an event of the log.  ``queue``: that of the webhook; if it is in a namespace, the event
    has the names of this namespace."""
    event = shown_event(prefix_of(queue or ""), event)
    more = {name: value for name, value in event.items() if name not in _OWN}
    message = {
        "id": delivery_id(event),
        "event": NAMES[event["eventType"]],
        "timestamp": int(event["timestamp"]),
        "queue": event["queue"],
        "jobId": event["jobId"],
        "data": more,
    }
    return write_json(message)


def delivery_id(event: dict[str, Any]) -> str:
    """The permanent id of an event.  A repeated delivery has the same one."""
    return f"{event['shard']}-{event['seq']}"


def trial_body(now_ms: int) -> bytes:
    """The body of a test delivery."""
    return write_json({"id": f"test-{now_ms}", "event": TEST, "timestamp": now_ms, "data": {}})


def headers_of(name: str, delivery: str, body: bytes, secret: str | None, now_s: int) -> Headers:
    """The headers for a body, signed if there is a secret."""
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "bunqueue-webhook",
        "X-Bunqueue-Event": name,
        "X-Bunqueue-Delivery": delivery,
    }
    if secret:
        headers[SIGNATURE] = f"t={now_s},v1={signature(body, secret, now_s)}"
    return headers


def signature(body: bytes, secret: str, now_s: int) -> str:
    """HMAC-SHA256, in hexadecimal, of the time in seconds, a dot and the body."""
    return hmac.new(secret.encode(), b"%d." % now_s + body, hashlib.sha256).hexdigest()
