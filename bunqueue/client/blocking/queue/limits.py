"""Made by scripts/unasync.py from client/queue/limits.py; do not edit."""

from __future__ import annotations

from bunqueue.client.blocking.queue.base import QueueBase
from bunqueue.client.connection.options import Duration, whole_milliseconds
from bunqueue.client.options import checks
from bunqueue.client.options.checks import given, given_span, whole
from bunqueue.client.options.moments import When, time_left
from bunqueue.errors import OptionError
from bunqueue.model.stall import StallConfig
from bunqueue.protocol.commands import Ok, limits, stall
from bunqueue.protocol.commands.limits import Limits
from bunqueue.protocol.commands.stall import StallSettings


class Limiting(QueueBase):
    """The part of a queue that limits it. Limits hold over all workers together, and outlive a restart."""

    def set_rate_limit(self, limit: int, *, per: Duration = 1000, ttl: When | None = None) -> None:
        """Let `limit` jobs start in every `per` (ms or a timedelta). With a `ttl` that ends after so long, or
        at that moment (a datetime with a time zone).

        It is a token bucket: after a rest up to `limit` jobs start at once, and from then on one every
        `per / limit`, evenly. So within a single `per` up to twice the `limit` may start, and in the long run
        `limit` in each. (A group's limit is counted in windows.) To let no job start, `pause` the queue.

        Raises OptionError unless `limit` is a whole number from 1 on.
        """
        command = limits.RateLimit(
            queue=self.name,
            limit=_checked(limit),
            duration=whole_milliseconds(per, "per"),
            ttl=None if ttl is None else time_left(ttl, "ttl"),
        )
        self._caller.call(checks.checked(command, duration="per"), Ok)

    def clear_rate_limit(self) -> None:
        """Let jobs through as fast as workers take them."""
        self._caller.call(limits.RateLimitClear(queue=self.name), Ok)

    def set_concurrency(self, limit: int) -> None:
        """Let no more than `limit` jobs be active at a time. To let none start, `pause` the queue.

        Raises OptionError unless `limit` is a whole number from 1 on.
        """
        command = limits.SetConcurrency(queue=self.name, limit=_checked(limit))
        self._caller.call(checks.checked(command), Ok)

    def clear_concurrency(self) -> None:
        """Let any number of jobs be active at a time."""
        self._caller.call(limits.ClearConcurrency(queue=self.name), Ok)

    def limits(self) -> Limits:
        """The limits that are set, and whether they hold jobs back at present."""
        reply = self._caller.call(limits.GetQueueLimits(queue=self.name), limits.LimitsReply)
        return reply.data.limits

    def stall_config(self) -> StallConfig:
        """When active jobs count as stalled."""
        reply = self._caller.call(stall.GetStallConfig(queue=self.name), stall.StallConfigReply)
        return reply.config

    def set_stall_config(
        self,
        *,
        enabled: bool | None = None,
        stall_interval: Duration | None = None,
        max_stalls: int | None = None,
        grace_period: Duration | None = None,
    ) -> None:
        """Change when active jobs count as stalled; what is not given stays as it is.

        A job that was silent for `stall_interval` goes back to the queue, and the `max_stalls`-th time to the
        dead letters. The first `grace_period` of an attempt does not count.
        """
        settings = StallSettings(
            enabled=given(enabled),
            stall_interval=given_span(stall_interval, "stall_interval"),
            max_stalls=given(max_stalls),
            grace_period=given_span(grace_period, "grace_period"),
        )
        checks.settings(StallConfig, settings)
        self._caller.call(stall.SetStallConfig(queue=self.name, config=settings), Ok)


def _checked(limit: int) -> int:
    if limit == 0 and not isinstance(limit, bool):
        raise OptionError("limit: 0 would let no job start; pause the queue for that, or give 1 or more")
    return whole("limit", limit)
