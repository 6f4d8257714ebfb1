"""A shard that notices when its files are deleted or replaced while it runs.

What it commits from then on would be gone with the process.  It writes a deleted file anew and ends, and a
new process goes on with it.  Where that is not possible it refuses pushes, says so, and tries again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from bunqueue.logs import get_logger
from bunqueue.protocol.codes import Code

from .engine.memory.vitals import Trouble
from .resilient import Mode, ResilientShard, StorageFailed
from .storage.presence import Absence
from .storage.repair.rescue import RescueError, rescue, rescued

LOOK_S = 1.0  # between two looks: what is pushed between the deletion and the look is rescued, too
_log = get_logger("shard")


class WatchedShard(ResilientShard):
    """See above.  While all is well it costs a look at the clock for each batch, and four calls a second."""

    goes_on: Callable[[], None] = staticmethod(lambda: None)
    """Called from time to time while a rescue takes long."""
    _next_look = 0.0
    _absence: Absence | None = None

    def tick(self) -> int:
        if time.monotonic() >= self._next_look:
            self._watch()
            self._next_look = time.monotonic() + LOOK_S
        return super().tick()

    def _watch(self) -> None:
        database = self.store.database
        if database.presence is None or database.connection.in_transaction:
            return
        absence = database.presence.absence()
        if absence is not None:
            self._rescue(absence, Path(database.path))
        elif self._absence is not None:
            self._absence = None
            _log.info("the data file is at its place again", file=database.path)
            if self._mode is Mode.NO_GROWTH:
                self._recovered(self._clock.now_ms())

    def _rescue(self, absence: Absence, path: Path) -> None:
        """StorageFailed, which ends this process, when all is on disk again."""
        if absence is not self._absence:
            _log.error("a data file of the running server is gone", file=str(path), what=absence.value)
        self._absence = absence
        try:
            done = rescue(self.store.database.connection, path, absence, self.goes_on)
        except RescueError as error:
            cure = f"it cannot be written anew ({error}); put it back, or make {path.parent} writable"
        else:
            if done:
                _log.warning("it was written anew, with all that was acknowledged", file=str(path))
                raise StorageFailed(f"{path} {absence.value}, and was written anew")
            cure = (
                f"what this server holds was copied to {rescued(path)}; stop the server and decide which of "
                f"the two is to be {path.name}"
            )
        self._refuse_growth(f"Storage fails: {path} {absence.value} while the server runs: {cure}")

    def _refuse_growth(self, text: str) -> None:
        if self._trouble is None or self._trouble.error != text:
            _log.error("pushes are refused: they would be lost", error=text)
        now = self._clock.now_ms()
        since = now if self._trouble is None else self._trouble.since
        self._trouble = Trouble(text, since, False, Code.STORAGE_FAILED)
        if self._mode is Mode.NORMAL:
            self._enter(Mode.NO_GROWTH)

    def _recovered(self, now: int) -> None:
        if self._absence is None:
            super()._recovered(now)
