"""Replies to pushes with idempotency keys: memory without rules; these are in idempotency.py."""

from __future__ import annotations

from collections import deque

from ..outbox import Pushed


class PushMemory:
    """Part of the state."""

    __slots__ = ("batches", "forgotten_at", "known", "underway", "weight")

    def __init__(self) -> None:
        self.known: dict[str, str | Pushed] = {}
        self.batches: deque[tuple[int, list[str]]] = deque()  # (at, keys), oldest first
        self.weight = 0  # of all known replies
        self.forgotten_at = 0  # time of the latest push that was forgotten early
        self.underway: set[str] = set()  # keys of pushes that wait for other shards
