"""Which of several queues a worker asks next: the rules, without I/O.

Even: each queue has a slot of its own, see `Fetcher`. Strict: a queue is asked only if those before it have
nothing ready. Weighted: while all queues have jobs, they get slots in proportion to their weights.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from bunqueue.client.connection.options import refused

Order = Literal["even", "strict"] | Mapping[str, int]

MAX_WEIGHT = 1000  # more than the slots a worker can fill with one poll


class Turns:
    """The turns of queues that are asked one after the other. `weights`: None means strict."""

    def __init__(self, queues: tuple[str, ...], weights: Mapping[str, int] | None) -> None:
        self._queues = queues
        self._weights = weights
        self._passed = dict.fromkeys(queues, 0.0)  # slots received, divided by the weight

    def ask(self, room: int, empty: Collection[str]) -> tuple[str, int]:
        """The queue to ask next, and for how many jobs. `empty` queues, never all of them, were just
        exhausted.
        """
        left = [queue for queue in self._queues if queue not in empty]
        if self._weights is None or len(left) == 1:
            return left[0], room
        passed = {queue: self._passed[queue] for queue in left}
        first = min(left, key=passed.__getitem__)
        count = 0
        for _ in range(room):
            queue = min(left, key=passed.__getitem__)
            passed[queue] += 1 / self._weights[queue]
            count += queue == first
        return first, count

    def took(self, queue: str, jobs: int) -> None:
        """Record that this many jobs came from this queue."""
        if self._weights is not None:
            self._passed[queue] += jobs / self._weights[queue]

    def ended(self, empty: Collection[str]) -> None:
        """A queue that had nothing does not accumulate turns for later."""
        rest = [self._passed[queue] for queue in self._queues if queue not in empty]
        least = min(rest, default=0.0)
        for queue in self._queues:
            passed = max(self._passed[queue], least) if queue in empty else self._passed[queue]
            self._passed[queue] = passed - least if rest else 0.0


def checked_kind(order: Order) -> Order:
    """Return a valid order, for any queues. Raises OptionError."""
    return order if isinstance(order, Mapping) else checked_order(order, ("", ""))


def checked_order(order: object, queues: tuple[str, ...]) -> Literal["even", "strict"] | dict[str, int]:
    """Return a valid order. Raises OptionError for an unknown one, or for weights that do not name each queue
    once.
    """
    if order == "even":
        return "even"
    if len(queues) == 1 and (order == "strict" or isinstance(order, Mapping)):
        raise refused("order", order, f"is not allowed, as the worker has one queue, {queues[0]!r}")
    if order == "strict":
        return "strict"
    if not isinstance(order, Mapping):
        allowed = '"even", "strict", or a weight for each queue'
        raise refused("order", order, f"is not allowed; give {allowed}")
    if set(order) != set(queues):
        allowed = f"a weight for each of {', '.join(queues)}"
        raise refused("order", order, f"is not allowed; give {allowed}")
    for queue, weight in order.items():
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= MAX_WEIGHT:
            allowed = f"a whole number from 1 to {MAX_WEIGHT}"
            raise refused(f"order[{queue!r}]", weight, f"is not allowed; give {allowed}", MAX_WEIGHT)
    return dict(order)
