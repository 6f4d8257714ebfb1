"""What is in memory of the result of a removed child; `lifecycle/child_results.py` has the rest."""

from __future__ import annotations

from msgspec import Struct


class ChildResult(Struct):
    """The part of a record kept in memory: when the child completed (epoch ms), and its queue."""

    at: int
    queue: str
