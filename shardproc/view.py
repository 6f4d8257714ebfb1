"""The shard of a standby: it shows the file as the primary has shipped it, and changes nothing.

The engine writes a little into every file that it is started on. Here this happens in a transaction that is
never committed, so the file stays what the primary has shipped, however the process ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import Spec
from bunqueue.protocol.commands.base import CommandError

from .core import MAX_WAIT_MS, Shard
from .engine import peer_calls
from .resilient import READ_ONLY, ResilientShard
from .storage.uncommitted import Uncommitted


class View(ResilientShard):
    """See above. Time stands still in it."""

    def __init__(self, path: str, refusal: str, **options: Any) -> None:
        """``refusal``: the text for commands that would change something."""
        self._text = refusal
        super().__init__(path, factory=Uncommitted, **options)

    def recover(self, now: int, epoch: str, progress: Callable[[int, int], None]) -> int:
        count = super().recover(now, epoch, progress)
        self._enter(READ_ONLY)
        self.restriction = self._view_refusal
        return count

    def _view_refusal(self, spec: Spec) -> CommandError | None:
        if spec.writes or spec.parks:
            return CommandError(self._text, Code.STANDBY)
        return None

    def tick(self) -> int:
        return self.now()

    def wait_ms(self) -> int:
        return MAX_WAIT_MS

    def _part(self, what: Callable[..., None], now: int) -> None:
        """A client has left: it has changed nothing."""
        what(now=now)

    def receive(self, source: int, body: bytes, now: int) -> None:
        if peer_calls.is_read(body, self._asked):
            Shard.receive(self, source, body, now)

    def peer_is_up(self, shard: int, now: int) -> None:
        """Nothing has to be agreed on."""

    def compact(self) -> None:
        """The file stays as it is."""

    def end(self) -> None:
        """Nothing was changed, so nothing is marked."""
