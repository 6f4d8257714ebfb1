"""The server's activity over the last hour, so that charts have data from before they were opened.

The gateway polls the same few numbers: often while a page shows them, rarely otherwise, and less often the
longer the answer takes.  They are kept in memory, so a restart of the gateway clears them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from bunqueue.protocol.commands import COMMANDS

from ..http import status
from ..http.access import need
from ..http.commands import CommandEndpoint
from ..http.problems import Problem, answer
from ..http.transcode import write_json
from ..http.unknown_fields import check_names

WATCHED_S, ALONE_S = 2.0, 10.0  # between two polls
WATCHED_FOR_S = 15.0  # after the last request of a page
SHARE = 50  # seconds of rest for each second that an answer takes
KEPT_MS = 3_600_000
MAX_KEPT = 2_000  # points; about 0.5 MB
WINDOW_MS = 60_000  # over which percentiles are computed: shorter windows would make them jump


class Point(NamedTuple):
    """A moment (epoch ms): jobs by state, jobs per second since the previous point, and percentiles in ms.
    None for an unknown value."""

    at: float
    waiting: int
    active: int
    delayed: int
    added: float | None
    completed: float | None
    failed: float | None
    waitP50: float | None  # a wire name
    waitP95: float | None
    runP50: float | None
    runP95: float | None


class Sample(NamedTuple):
    """One poll of the server: jobs by state, and totals since its start."""

    at: float
    counts: tuple[int, int, int]  # waiting, active, delayed
    totals: tuple[int, int, int]  # pushed, completed, failed
    waits: Mapping[str, int]  # completed jobs by the upper bound of their waiting time in ms
    runs: Mapping[str, int]


def sample_of(overview: Mapping[str, Any]) -> Sample:
    """A poll, from the data of DashboardOverview."""
    stats, latency = overview["stats"], overview["latency"]
    return Sample(
        overview["timestamp"],
        (stats["waiting"], stats["active"], stats["delayed"]),
        (stats["totalPushed"], stats["totalCompleted"], stats["totalFailed"]),
        latency["waits"],
        latency["runs"],
    )


def point_of(samples: Sequence[Sample]) -> Point:
    """The newest poll as a point, given the polls of the window before it.  Totals that have decreased count
    as unknown: a shard has restarted."""
    now, first = samples[-1], samples[0]
    before = samples[-2] if len(samples) > 1 else now
    seconds = (now.at - before.at) / 1000
    changes = [new - old for new, old in zip(now.totals, before.totals, strict=True)]
    rates = [round(change / seconds, 2) if seconds > 0 else -1 for change in changes]
    added, completed, failed = rates if min(rates) >= 0 else (None, None, None)
    waits, runs = _since(now.waits, first.waits), _since(now.runs, first.runs)
    percentiles = [quantile(counts, share) for counts in (waits, runs) for share in (0.5, 0.95)]
    return Point(now.at, *now.counts, added, completed, failed, *percentiles)


def _since(now: Mapping[str, int], before: Mapping[str, int]) -> dict[float, int]:
    """The increase of a histogram, by upper bound."""
    return {float(bound): count - before.get(bound, 0) for bound, count in now.items()}


def quantile(counts: Mapping[float, int], share: float) -> float | None:
    """The time that this share of jobs did not exceed, approximately.  Jobs within a step count as spread
    evenly, and those beyond the last bound count as equal to it.  None without jobs."""
    total = sum(counts.values())
    if total <= 0 or min(counts.values()) < 0:
        return None
    left, lower = share * total, 0.0
    for bound in sorted(counts):
        count = counts[bound]
        if count and left <= count:
            return lower if math.isinf(bound) else round(lower + (bound - lower) * left / count, 2)
        left -= count
        lower = lower if math.isinf(bound) else bound
    return lower


class History:
    """The history of one server."""

    def __init__(self, carrier: CommandEndpoint) -> None:
        self._carrier = carrier
        self._samples: deque[Sample] = deque()
        self._points: deque[Point] = deque(maxlen=MAX_KEPT)
        self._asked = -math.inf  # when a page last requested it
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start polling."""
        self._task = self._task or asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """Stop polling."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def endpoint(self, request: Request) -> Response:
        """GET /history: the points after the moment ``after`` (epoch ms), within the last hour."""
        identity = need(request, COMMANDS["DashboardOverview"].verbs, "the history")
        check_names(request.query_params, ("after",))
        text = request.query_params.get("after", "0")
        try:
            after = float(text)
        except ValueError:
            raise Problem(status.INVALID, f"after must be a moment in epoch ms, not {text[:100]!r}") from None
        points = []
        if not identity.queues:  # the figures are those of all queues
            self._asked = time.monotonic()
            self._wanted.set()
            points = [point for point in self._points if point.at > after]
        return answer(write_json({"ok": True, "data": {"names": Point._fields, "points": points}}))

    async def _follow(self) -> None:
        while True:
            began = time.monotonic()
            with suppress(Problem):  # the router or a shard is down, which is reported elsewhere
                reply = await self._carrier.carry_out(COMMANDS["DashboardOverview"], {})
                if reply["ok"]:
                    self._note(sample_of(reply["data"]))
            took = time.monotonic() - began
            await self._wait_until_due(took * SHARE)

    async def _wait_until_due(self, least_s: float) -> None:
        """Wait until the next poll is due, less long when a page requests the history."""
        await asyncio.sleep(max(WATCHED_S, least_s))
        if time.monotonic() - self._asked > WATCHED_FOR_S:
            self._wanted.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(ALONE_S - WATCHED_S):
                    await self._wanted.wait()

    def _note(self, sample: Sample) -> None:
        samples, points = self._samples, self._points
        samples.append(sample)
        while samples[0].at < sample.at - WINDOW_MS:
            samples.popleft()
        points.append(point_of(samples))
        while points[0].at < sample.at - KEPT_MS:
            points.popleft()
