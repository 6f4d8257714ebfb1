"""Moments in replies: a datetime in UTC, and the epoch ms beside it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from bunqueue.client.event_stream import QueueEvent
from bunqueue.client.models.jobs import Job, JobMoment
from bunqueue.client.models.views import DeadLetter, FailedAttempt
from bunqueue.protocol.commands.cron import CronView
from bunqueue.protocol.commands.dlq import DlqStats
from bunqueue.protocol.commands.insight import AttemptView, WaitReason
from bunqueue.protocol.commands.jobs import LogLine
from bunqueue.protocol.commands.monitoring import (
    HistoryMeta,
    JobSketch,
    Overview,
    QueueDetails,
    QueueOverviews,
    StorageState,
)
from bunqueue.protocol.commands.webhooks import AddedWebhook, WebhookInfo
from bunqueue.protocol.commands.workers import WorkerInfo
from bunqueue.protocol.moments import MaybeMoment, Moment, moment

VIEWS: list[type[Any]] = [AddedWebhook, AttemptView, CronView, DeadLetter, DlqStats, FailedAttempt]
VIEWS += [HistoryMeta, Job, JobMoment, JobSketch, LogLine, Overview, QueueDetails, QueueEvent, QueueOverviews]
VIEWS += [StorageState, WaitReason, WebhookInfo, WorkerInfo]
NO_MOMENTS = {"avg_latency_ms", "oldest_ms"}


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_each_time_is_a_moment_and_a_number(view: type[Any]) -> None:
    numbers = [name for name in view.__struct_fields__ if name.endswith("_ms") and name not in NO_MOMENTS]
    assert numbers
    for name in numbers:
        optional = "None" in str(view.__annotations__[name])
        assert isinstance(getattr(view, name.removesuffix("_ms")), MaybeMoment if optional else Moment)


def test_the_wire_keeps_its_names_and_its_numbers() -> None:
    job = msgspec.convert({"id": "a", "queue": "q", "createdAt": 1_700_000_000_250, "runAt": 0}, Job)
    assert job.created_at == datetime(2023, 11, 14, 22, 13, 20, 250_000, tzinfo=UTC)
    assert (job.created_at.utcoffset(), job.created_at_ms) == (timedelta(0), 1_700_000_000_250)
    assert (job.completed_at, job.completed_at_ms) == (None, None)
    said = msgspec.to_builtins(job)
    assert (said["createdAt"], said["runAt"], said["completedAt"]) == (1_700_000_000_250, 0, None)


@pytest.mark.parametrize("ms", [0, 1, 999, 1_767_225_600_001, 253_402_300_799_999])
def test_no_ms_is_lost(ms: int) -> None:
    assert (moment(ms) - moment(0)) / timedelta(milliseconds=1) == ms


def test_what_no_datetime_can_be_is_the_end_of_time() -> None:
    """A `timestamp` of a client's own may be 1e15, in the year 33658."""
    assert moment(1e15) == datetime.max.replace(tzinfo=UTC)
