"""Reporting on a job that was taken by hand: that it goes on, or how it ended."""

from __future__ import annotations

from typing import TypeVar

from msgspec import UNSET, UnsetType

from bunqueue.client.connection.options import Duration, whole_milliseconds
from bunqueue.client.options import checks
from bunqueue.client.options.job import encode_data
from bunqueue.client.queue.job_base import AsyncJobBase
from bunqueue.errors import LockLost
from bunqueue.protocol.commands.core import Ack, AckReply, Applied, Fail, HeartbeatReply, JobHeartbeat

R = TypeVar("R")


class AsyncJobReporting(AsyncJobBase[R]):
    """The part of a job's handle for whoever took the job with `pull`.

    `lock_token` is what `pull` gave. LockLost is raised without it, or when the lock is no longer valid, or
    the report came too late to count; WrongState when the job is not active.
    """

    __slots__ = ()

    async def complete(self, result: object = None, *, lock_token: str | None = None) -> None:
        """Complete the job. Raises PayloadError for a result that cannot be sent."""
        command = checks.checked(Ack(id=self.id, token=lock_token))
        if result is not None:
            command.result = encode_data(result, "the result")
        _must_count((await self._ask(command, AckReply)).data)

    async def fail(
        self,
        error: str | None = None,
        *,
        lock_token: str | None = None,
        unrecoverable: bool = False,
        give_back: bool = False,
    ) -> None:
        """Report that the attempt has failed: the job is retried, or becomes a dead letter.

        With `unrecoverable` it becomes one at once. With `give_back` the attempt does not count, and the job
        takes its old place in the queue.
        """
        command = Fail(
            id=self.id, error=error, token=lock_token, unrecoverable=unrecoverable, interrupted=give_back
        )
        _must_count((await self._ask(checks.checked(command), AckReply)).data)

    async def heartbeat(self, *, lock_token: str | None = None, duration: Duration | None = None) -> bool:
        """Say that somebody still works on the job. With its lock token, renew the lock, for `duration` or as
        long as before. Returns False when the job was cancelled, so work on it may stop."""
        lasting = None if duration is None else whole_milliseconds(duration, "duration")
        command = checks.checked(JobHeartbeat(id=self.id, token=lock_token, duration=lasting))
        return (await self._ask(command, HeartbeatReply)).data.cancelled is UNSET


def _must_count(answer: Applied | UnsetType) -> None:
    if answer is not UNSET and not answer.applied:
        raise LockLost(f"it came too late to count: {answer.reason}")
