"""What pushes with idempotency keys were answered: memory without rules, which idempotency.py has."""

from __future__ import annotations

from collections import deque

from ..outbox import Pushed


class PushMemory:
    """Part of the state."""

    __slots__ = ("batches", "forgotten_at", "known", "underway", "weight")

    def __init__(self) -> None:
        self.known: dict[str, str | Pushed] = {}
        self.batches: deque[tuple[int, list[str]]] = deque()  # (at, keys), the oldest first
        self.weight = 0  # of all that is known
        self.forgotten_at = 0  # when the youngest push that was forgotten early had come
        self.underway: set[str] = set()  # those that wait for other shards
