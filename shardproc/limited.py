"""A shard that refuses what grows while its memory is used up; all else goes on."""

from __future__ import annotations

from typing import Any

import msgspec

from bunqueue.protocol.codec import InvalidCommand, decode_command
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import COMMANDS
from bunqueue.protocol.commands.base import CommandError

from .engine.memory.vitals import Vitals
from .engine.state import Client
from .pressure import Pressure
from .resilient import Mode
from .watched import WatchedShard


class LimitedShard(WatchedShard):
    """See above.  While there is memory it costs a look at the clock for each batch."""

    def __init__(self, path: str, *, memory: int, **options: Any) -> None:
        """``memory``: bytes that the process may take; 0 for no limit.  The rest as for `WatchedShard`."""
        self._pressure = Pressure(memory, lambda: self.store.database.shrink())
        super().__init__(path, **options)

    def tick(self) -> int:
        now = super().tick()
        if self._pressure.looks(len(self.engine.state.jobs)):
            self._enter(self._mode)
        return now

    def _enter(self, mode: Mode) -> None:
        super()._enter(mode)
        if self._pressure.full:
            self.execute = self._execute_some  # type: ignore[method-assign]

    def _execute_some(self, client: Client, payload: bytes, now: int) -> None:
        if self._pressure.full:
            try:
                command = decode_command(payload)
            except InvalidCommand as error:
                self._refuse(client, payload, error)
                return
            if COMMANDS[str(command.__struct_config__.tag)].grows:
                refusal = CommandError(self._pressure.refusal, Code.MEMORY_LIMIT)
                self._refuse(client, payload, InvalidCommand(refusal, command.req_id))
                return
        super()._execute_some(client, payload, now)

    def _vitals(self) -> Vitals:
        pressure = self._pressure
        return msgspec.structs.replace(
            super()._vitals(), memory_limit=pressure.share, memory_full=pressure.full
        )
