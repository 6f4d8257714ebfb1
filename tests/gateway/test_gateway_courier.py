"""A courier with its times cut short: when it gives up, what it records, and what it never leaves out."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.receiver import Receiver, receiving
from support.waiting import PATIENCE_S, eventually

from bunqueue.gateway.events.entries import Filter, Positions
from bunqueue.gateway.events.log_reader import EVERYTHING, LogReader, LogUnreadable, Page
from bunqueue.gateway.webhooks import delivery as module
from bunqueue.gateway.webhooks import shared_event_logs
from bunqueue.gateway.webhooks.delivery import SKEW_MS, WebhookDelivery
from bunqueue.gateway.webhooks.shared_event_logs import Logs
from bunqueue.protocol.commands.webhooks import Delivery, RecordDelivery

SHARDS = 2


class Log(LogReader):
    """The logs of two shards, which tell at most what is asked for."""

    def __init__(self, counts: list[int], steps: tuple[float, ...] = (1000.0, 1000.0)) -> None:
        self.counts = counts
        self.steps = steps  # ms between two events of a shard
        self.away: set[int] = set()  # shards
        self.asked: list[tuple[Positions | None, float | None]] = []

    async def read(
        self, after: Positions | None, limit: int, wanted: Filter = EVERYTHING, since: float | None = None
    ) -> Page:
        self.asked.append((None if after is None else list(after), since))
        if len(self.away) == SHARDS:
            raise LogUnreadable("all are away")
        events: list[dict[str, Any]] = []
        places = []
        for shard, last in enumerate(self.counts):
            if shard in self.away:
                continue
            begin = 0 if after is None else after[shard]
            found = range(begin + 1, min(last, begin + limit) + 1)
            events += [_event(shard, seq, self.steps[shard]) for seq in found]
            places.append({"shard": shard, "after": found[-1] if found else begin, "last": last, "missed": 0})
        return Page(events, places)


def _event(shard: int, seq: int, step: float) -> dict[str, Any]:
    job = f"{shard}/{seq}"
    return {
        "eventType": "failed",
        "queue": f"q{shard}",
        "jobId": job,
        "timestamp": step * seq,
        "shard": shard,
        "seq": seq,
    }


class Case:
    """A courier, and what it recorded."""

    def __init__(self, receiver: Receiver, log: Log, places: Positions | None = None) -> None:
        self.records: list[RecordDelivery] = []
        self.refusals = 0  # before one is stored
        hook = Delivery("hook", receiver.url, ["job.failed"], None, None, True, places, 5.0)
        self.courier = WebhookDelivery(
            hook,
            Logs(log, SHARDS),
            self._record,
            shards=SHARDS,
            anywhere=True,
            first_delay_s=0.001,
            max_failures=4,
        )

    async def _record(self, news: RecordDelivery) -> bool:
        if self.refusals:
            self.refusals -= 1
            return False
        self.records.append(news)
        return True

    @property
    def places(self) -> Positions | None:
        return self.records[-1].places


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_event_logs, "POLL_S", 0.01)
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(module, "RECORD_S", 0.0)


async def test_it_gives_up_after_so_many_failures() -> None:
    with receiving() as receiver:
        receiver.status = 500
        case = Case(receiver, Log([3, 0]))
        await asyncio.wait_for(case.courier.run(), PATIENCE_S)
        assert len(receiver.deliveries) == 4
        assert case.records[-1].disable
        assert sum(record.failed for record in case.records) == 4
        assert case.places == [0, 0]  # so the first one comes again
        assert case.records[-1].error == "500 is no success"


async def test_failures_in_a_row_are_counted_anew_after_a_success() -> None:
    with receiving() as receiver:
        receiver.statuses = [500, 500, 500, 200, 500, 500, 500]
        case = Case(receiver, Log([2, 0]))
        task = asyncio.create_task(case.courier.run())
        await eventually(lambda: len(receiver.arrived()) == 2, "both arrive")
        await eventually(lambda: case.records and case.places == [2, 0], "the place is recorded")
        task.cancel()
        await asyncio.wait((task,))
        assert not any(record.disable for record in case.records)


async def test_a_shard_that_is_away_at_the_beginning_is_waited_for() -> None:
    with receiving() as receiver:
        log = Log([2, 2])
        log.away = {1}
        task = asyncio.create_task(Case(receiver, log).courier.run())
        await eventually(lambda: len(log.asked) > 3, "it asked several times")
        assert receiver.deliveries == []
        assert set(map(str, log.asked)) == {"(None, 5.0)"}
        log.away = set()
        await eventually(lambda: len(receiver.arrived()) == 4, "all arrive")
        log.away = {0}
        log.counts = [3, 3]
        await eventually(lambda: len(receiver.arrived()) == 5, "that of the other shard arrives")
        log.away = set()
        await eventually(lambda: len(receiver.arrived()) == 6, "and that of this one")
        task.cancel()
        await asyncio.wait((task,))
        ids = [message["jobId"] for message in receiver.arrived()]
        assert [job for job in ids if job[0] == "0"] == ["0/1", "0/2", "0/3"]
        assert [job for job in ids if job[0] == "1"] == ["1/1", "1/2", "1/3"]


async def test_it_goes_on_where_it_was() -> None:
    with receiving() as receiver:
        case = Case(receiver, Log([5, 9]), places=[4, 9])
        task = asyncio.create_task(case.courier.run())
        await eventually(lambda: len(receiver.arrived()) == 1, "the one that is left arrives")
        task.cancel()
        await asyncio.wait((task,))
        assert receiver.arrived()[0]["id"] == "0-5"
        assert case.places == [5, 9]


async def test_nothing_is_left_before_the_time_that_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is where to go on when the number of shards has changed, and one may have much more to tell."""
    monkeypatch.setattr(module, "PAGE", 3)
    with receiving() as receiver:
        log = Log([4, 20], steps=(100_000.0, 10_000.0))
        case = Case(receiver, log)
        task = asyncio.create_task(case.courier.run())
        await eventually(lambda: len(receiver.arrived()) == 24, "all arrive")
        await eventually(lambda: case.places == [4, 20], "the place is recorded")
        task.cancel()
        await asyncio.wait((task,))
        for record in case.records:
            places = zip(record.places or (), log.counts, log.steps, strict=True)
            left = [step * (place + 1) for place, count, step in places if place < count]
            assert record.until is not None
            assert all(record.until <= time for time in left), record
        assert case.records[-1].until == 400_000.0 - SKEW_MS


async def test_what_could_not_be_recorded_is_recorded_later() -> None:
    with receiving() as receiver:
        receiver.status = 410
        case = Case(receiver, Log([1, 0]))
        case.refusals = 3
        await asyncio.wait_for(case.courier.run(), PATIENCE_S)
        assert len(receiver.deliveries) == 1
        assert [(record.failed, record.disable) for record in case.records] == [(1, True)]


async def test_one_look_for_all_who_have_come_to_the_end() -> None:
    log = Log([3, 3])
    found = Logs(log, SHARDS)
    waiting = [asyncio.create_task(found.changed([3, 3])) for _ in range(50)]
    await found.read(None, 0, EVERYTHING, None)
    await eventually(lambda: len(log.asked) > 3, "it was looked at several times")
    assert not any(task.done() for task in waiting)
    before, log.counts = len(log.asked), [3, 4]
    await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)
    assert len(log.asked) - before < 10
