"""Text about dead letters that were dropped, or soon will be, for ``doctor``, ``dlq`` and ``errors``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bunqueue.text import plural

if TYPE_CHECKING:
    from bunqueue import Queue
    from bunqueue.protocol.commands.dlq import Dropped

RECENT_S = 7 * 86_400
"""How long ``doctor`` reports them, in seconds."""
NEARLY = 0.8
"""The share of the dead letters that a queue keeps from which on people are told: they can still act."""
KEEP_ALL = "bunqueue dlq config QUEUE --max-entries 0 --max-age never keeps all from now on"

_NAME = "queue_dead_letters_dropped"


def dropped_lately(samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]) -> list[tuple[str, int]]:
    """Queues that dropped dead letters within the last week, with the total number of each; the highest
    first."""
    counts: Counter[str] = Counter()
    begin = time.time() - RECENT_S
    for (name, labels), value in samples.items():
        queue = dict(labels).get("queue", "")
        last = samples.get((f"{_NAME}_last_timestamp_seconds", frozenset({("queue", queue)})), 0)
        if name == f"{_NAME}_total" and value and last >= begin:
            counts[queue] += int(value)
    return counts.most_common()


def loss_text(queue: Queue) -> str | None:
    """The text below the dead letters or errors of a queue: some were dropped, or will be with the next
    failures."""
    if (dropped := queue.dropped_dlq()).count:
        return dropped_text(queue.name, dropped)
    count, most = queue.counts().failed, queue.dlq_config().max_entries
    if not most or count < NEARLY * most:
        return None
    return (
        f"{queue.name} has {plural(count, 'dead letter')}, and at most {most:,} are kept; beyond that "
        f"the oldest are dropped: bunqueue dlq config {queue.name} --max-entries 0 keeps all from now on"
    )


def dropped_text(queue: str, dropped: Dropped) -> str:
    """How many dead letters of a queue were dropped, why, and what keeps the rest."""
    why, flags = [], ""
    if dropped.too_many:
        why.append(f"{dropped.too_many:,} as there were more than are kept")
        flags += " --max-entries 0"
    if dropped.too_old:
        why.append(f"{dropped.too_old:,} as they were too old")
        flags += " --max-age never"
    since = f" since {dropped.first_at:%Y-%m-%d %H:%M} UTC" if dropped.first_at else ""
    were = "was" if dropped.count == 1 else "were"
    text = f"{plural(dropped.count, 'more dead letter')} of {queue} {were} dropped{since}: {', '.join(why)}"
    return f"{text}; bunqueue dlq config {queue}{flags} keeps all from now on"
