"""What a shard keeps of a webhook."""

from __future__ import annotations

from msgspec import Struct


class Webhook(Struct):
    """A webhook as it is stored.  Times in epoch ms."""

    id: str
    url: str
    events: list[str]
    queue: str | None
    secret: str | None
    created_at: int
    last_triggered: int | None = None
    success_count: int = 0
    failure_count: int = 0
    enabled: bool = True
    places: list[int] | None = None  # as in Delivery
    until: int | None = None
    last_error: str | None = None
