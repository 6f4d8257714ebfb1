"""Logs dropped dead letters: at most one line per queue and minute."""

from __future__ import annotations

from bunqueue.logs import get_logger

from .engine.memory.dropped_letters import DroppedLetters

EVERY_MS = 60_000
MAX_LINES = 20  # a minute; further queues share one more line, and the metrics count all of them

_log = get_logger("shard")
_WHAT = "dead letters were dropped; bunqueue dlq config has more kept, or for longer"


class DroppedLog:
    """The log of one shard."""

    def __init__(self) -> None:
        self._due = 0  # the next lines

    def log_due(self, dropped: DroppedLetters, now: int) -> None:
        """Log what was dropped, if it is time to."""
        if not dropped.untold or (now < self._due and self._due - now <= EVERY_MS):
            return
        self._due = now + EVERY_MS
        self.log_all(dropped)

    @staticmethod
    def log_all(dropped: DroppedLetters) -> None:
        """Log what was dropped; also called before the end."""
        untold, dropped.untold = sorted(dropped.untold.items(), key=lambda each: -sum(each[1])), {}
        for queue, (too_many, too_old) in untold[:MAX_LINES]:
            _log.warning(_WHAT, queue=queue, too_many=too_many, too_old=too_old)
        if more := untold[MAX_LINES:]:
            count = sum(sum(counts) for _, counts in more)
            _log.warning("dead letters of more queues were dropped", queues=len(more), letters=count)
