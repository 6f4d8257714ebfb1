"""The commands of one client that its shards have not answered: how many, and when more may follow."""

from __future__ import annotations

from .admission import MAX_SLOW

MAX_AHEAD = 1024  # unanswered commands of one client at a shard; half of them keep the shard busy
MAX_BYTES_AHEAD = 1024 * 1024  # bytes of these commands; one frame may be larger


class InFlight(dict[int, int]):
    """Their number at each shard. A shard stays in it once used."""

    __slots__ = ("_bytes", "_resume_at", "is_paused", "slow")

    def __init__(self) -> None:
        self.slow = 0
        """Those of them that may be answered late, and gathered ones, which are counted at no shard."""
        self.is_paused = False
        """Too much is in flight: nothing more may follow before half of it is answered."""
        self._resume_at = 0  # the number of commands in flight that ends the pause
        self._bytes = 0  # sent to shards since the last pause

    @property
    def must_wait(self) -> bool:
        """Whether something has to be answered before more may follow."""
        return self.is_paused or self.slow >= MAX_SLOW

    def add(self, shard: int, commands: int) -> None:
        """Commands are sent to a shard."""
        ahead = self[shard] = self.get(shard, 0) + commands
        if ahead > MAX_AHEAD:
            self._pause()

    def add_bytes(self, size: int) -> bool:
        """The commands of one read had so many bytes; returns `must_wait`."""
        self._bytes += size
        if self._bytes > MAX_BYTES_AHEAD:
            self._pause()
        return self.is_paused or self.slow >= MAX_SLOW  # no call: the hot path

    def _pause(self) -> None:
        self._bytes = 0
        if (ahead := sum(self.values()) - self.slow) > 0:
            self.is_paused, self._resume_at = True, ahead // 2

    def answered(self, slow: int) -> None:
        """Replies have come, ``slow`` of them to slow commands: perhaps the pause is over."""
        self.slow -= slow
        if self.is_paused and sum(self.values()) - self.slow <= self._resume_at:
            self._bytes, self.is_paused = 0, False

    @property
    def is_empty(self) -> bool:
        """Whether everything is answered."""
        return not (self.slow or any(self.values()))
