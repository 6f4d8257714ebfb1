"""Repeats a command until the server has answered.

After a lost connection the command is sent again over the next one with the same lock tokens, so it can only
affect the same attempt.
"""

from __future__ import annotations

import asyncio
import random
from itertools import count

from msgspec import Struct

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.connection.codeless import code_of
from bunqueue.client.connection.options import reconnect_delay
from bunqueue.client.connection.replies import R
from bunqueue.errors import (
    BunqueueError,
    CommandFailed,
    CommandTimeout,
    ConnectionLost,
    PayloadError,
    ShardUnavailable,
)
from bunqueue.protocol.codes import Code
from bunqueue.worker.outcomes import Outcomes

MAX_DELAY = 5.0  # seconds between repetitions
_PASSING = frozenset(
    {
        Code.RATE_LIMITED,
        Code.STORAGE_FULL,
        Code.STORAGE_FAILED,
        Code.STORAGE_LOCKED,
        Code.MEMORY_LIMIT,
        Code.SHARD_UNAVAILABLE,
        Code.STORE_UNAVAILABLE,
        Code.STANDBY,
    }
)


class RetryingCaller:
    """Repeats commands; `stats` is notified of failures."""

    def __init__(self, caller: AsyncCaller, stats: Outcomes) -> None:
        self.closed = False
        """The worker has ended: nothing is repeated any more."""
        self._caller = caller
        self._stats = stats

    async def ask(self, command: Struct, reply: type[R]) -> tuple[R | CommandFailed, bool]:
        """The server's reply or refusal.

        The second value says whether an earlier try may have been executed, so that the reply may be a
        consequence of that.
        """
        unsure = False
        for failures in count(1):
            try:
                return await self._caller.call(command, reply), unsure
            except PayloadError as error:  # it will never fit
                return CommandFailed(str(error), reason=str(error)), unsure
            except BunqueueError as error:
                if isinstance(error, CommandFailed) and not passes(error):
                    return error, unsure
                if self.closed:
                    return CommandFailed(str(error), reason=str(error)), True
                unsure = unsure or isinstance(error, ConnectionLost | CommandTimeout)
                self._stats.unreachable(error)
            await asyncio.sleep(min(reconnect_delay(failures, random.random()), MAX_DELAY))
        raise AssertionError("count never ends")


def passes(error: CommandFailed) -> bool:
    """Whether the same command may succeed later."""
    if isinstance(error, ShardUnavailable) or error.retry_after is not None:
        return True
    return (error.server_code or code_of(error.reason)) in _PASSING
