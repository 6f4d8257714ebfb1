"""Keeps the lock of one manually taken job alive, from a separate thread.

So it does not matter what the program does, whether it has an event loop, and whether it blocks that loop.
"""

from __future__ import annotations

import logging
import threading

from msgspec import UNSET

from bunqueue.client import engine_override
from bunqueue.client.connection.transport import Endpoint
from bunqueue.errors import BunqueueError, LockLost
from bunqueue.protocol.commands.core import HeartbeatReply, JobHeartbeat
from bunqueue.worker.locks.lock_renewer import Channel, channel_to

logger = logging.getLogger("bunqueue.client")

RENEWALS = 3  # per lock duration, so that one may fail
AGAIN_S = 0.5  # seconds until a failed renewal is retried


class HeldLock:
    """The lock of one job. `release` ends the thread, and waits for it."""

    def __init__(self, endpoint: Endpoint, job_id: str, token: str, lock_ms: int) -> None:
        self._endpoint, self._token, self._job_id, self._lock_ms = endpoint, token, job_id, lock_ms
        self._released = threading.Event()
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        if engine_override.current is None:  # in a sandbox time stands still
            self._thread = threading.Thread(target=self._run, name="bunqueue-held-lock", daemon=True)
            self._thread.start()

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled."""
        return self._cancelled.is_set()

    def release(self) -> None:
        """Stop renewing it; safe to call twice."""
        self._released.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        interval = self._lock_ms / 1000 / RENEWALS
        channel = channel_to(self._endpoint)
        pause = interval
        try:
            while not self._released.wait(pause):
                try:
                    pause = interval if self._renew(channel) else min(interval, AGAIN_S)
                except LockLost as error:
                    logger.warning("job %s: its lock is lost: %s", self._job_id, error)
                    return
        finally:
            channel.close()

    def _renew(self, channel: Channel) -> bool:
        """Whether it was renewed. Raises LockLost if somebody else holds it."""
        command = JobHeartbeat(id=self._job_id, token=self._token, duration=self._lock_ms)
        try:
            reply = channel.call(command, HeartbeatReply)
        except LockLost:
            raise
        except (OSError, BunqueueError) as error:
            logger.warning("job %s: its lock could not be renewed: %s", self._job_id, error)
            channel.close()
            return False
        if reply.data.cancelled is not UNSET:
            self._cancelled.set()
        return True
