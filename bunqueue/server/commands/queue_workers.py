"""The workers of one queue: how many are registered, and which jobs they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

MAX_NAMES = 10_000  # of the workers of one queue; above this, the names count as unknown


class QueueWorkers:
    """The registered workers of a queue."""

    def __init__(self) -> None:
        self.workers = 0
        self._silent = 0  # workers that do not declare the jobs that they run
        self._names: Counter[str] = Counter()  # job name -> number of workers that run it

    @property
    def names(self) -> list[str] | None:
        """The names of the jobs that workers run; None if not every worker declares them, or there are too
        many."""
        if self._silent or len(self._names) > MAX_NAMES:
            return None
        return list(self._names)

    def join(self, names: Sequence[str] | None) -> bool:
        """Add a worker that runs these jobs (None: it does not declare them); return whether `names`
        changed."""
        before = self._silent, len(self._names)
        first = not self.workers
        self.workers += 1
        if names is None:
            self._silent += 1
        else:
            self._names.update(names)
        return first or self._differs(before)

    def leave(self, names: Sequence[str] | None) -> bool:
        """Remove a worker that was added with these names; return whether `names` changed."""
        before = self._silent, len(self._names)
        self.workers -= 1
        if names is None:
            self._silent -= 1
        for name in names or ():
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]
        return not self.workers or self._differs(before)

    def _differs(self, before: tuple[int, int]) -> bool:
        silent, names = before
        return bool(silent) != bool(self._silent) or (not self._silent and names != len(self._names))
