"""What the log says of dead letters that were dropped: of each queue a line a minute at most."""

from __future__ import annotations

from bunqueue.logs import get_logger

from .engine.memory.dropped_letters import DroppedLetters

EVERY_MS = 60_000
MAX_LINES = 20  # a minute: of further queues together there is one more, and the metrics tell of all

_log = get_logger("shard")
_WHAT = "dead letters were dropped; bunqueue dlq config has more kept, or for longer"


class DroppedLog:
    """Of one shard."""

    def __init__(self) -> None:
        self._due = 0  # the next lines

    def say(self, dropped: DroppedLetters, now: int) -> None:
        """Tell of what has come, if it is time to."""
        if not dropped.untold or (now < self._due and self._due - now <= EVERY_MS):
            return
        self._due = now + EVERY_MS
        self.say_all(dropped)

    @staticmethod
    def say_all(dropped: DroppedLetters) -> None:
        """Tell of what has come: before the end, too."""
        untold, dropped.untold = sorted(dropped.untold.items(), key=lambda each: -sum(each[1])), {}
        for queue, (too_many, too_old) in untold[:MAX_LINES]:
            _log.warning(_WHAT, queue=queue, too_many=too_many, too_old=too_old)
        if more := untold[MAX_LINES:]:
            count = sum(sum(counts) for _, counts in more)
            _log.warning("dead letters of more queues were dropped", queues=len(more), letters=count)
