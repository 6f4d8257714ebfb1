"""From replies to values, and from the server's words to exceptions."""

from __future__ import annotations

import pickle
from typing import Any

import msgpack
import pytest

from bunqueue import (
    AuthError,
    BunqueueError,
    CommandFailed,
    JobNotFound,
    LockLost,
    NotFound,
    ShardUnavailable,
    StorageDamaged,
)
from bunqueue.client.connection.replies import Head, Refusal, decode_reply, refusal
from bunqueue.client.models import jobs
from bunqueue.protocol.commands import core, query, webhooks

GET = query.GetJob(id="job-1")
JOB = {"id": "job-1", "queue": "q", "createdAt": 1_700_000_000_000.0, "runAt": 1_700_000_000_500.5}


def decode(reply: type[Any], **fields: Any) -> Any:
    return decode_reply(msgpack.packb(fields), reply, GET, "host:1")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Job not found", JobNotFound),
        ("Job not found or not in processing state: job-1", LockLost),
        ("Invalid or expired lock token for job job-1", LockLost),
        ("Lock token required for job job-1", LockLost),
        ("Shard unavailable", ShardUnavailable),
        ("Not authenticated", AuthError),
        ("Invalid token", AuthError),
        ("priority must be at most 7", CommandFailed),
    ],
)
def test_error_texts_become_exceptions(text: str, kind: type[BunqueueError]) -> None:
    error = refusal(Refusal(error=text), GET, "host:1")
    assert type(error) is kind
    assert text in str(error)
    assert (error.job_id, error.command, error.address) == ("job-1", "GetJob", "host:1")


@pytest.mark.parametrize(
    ("text", "code", "kind", "told"),
    [
        ("Storage is full: free space", "STORAGE_FULL", CommandFailed, "STORAGE_FULL"),
        ("shard-00.db is damaged", "STORAGE_DAMAGED", StorageDamaged, "STORAGE_DAMAGED"),
        ("Shard unavailable: damaged", "STORAGE_DAMAGED", StorageDamaged, "STORAGE_DAMAGED"),
        ("Shard unavailable", "SHARD_UNAVAILABLE", ShardUnavailable, "shard_unavailable"),
        ("Something new", "OF_A_NEWER_SERVER", CommandFailed, "OF_A_NEWER_SERVER"),
        ("Job not found", None, JobNotFound, "job_not_found"),
    ],
)
def test_the_code_of_a_refusal_is_that_of_its_exception(
    text: str, code: str | None, kind: type[BunqueueError], told: str
) -> None:
    with pytest.raises(CommandFailed) as caught:
        decode(jobs.OneJob, ok=False, error=text, code=code)
    assert (type(caught.value), caught.value.code) == (kind, told)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.code, copy.reason) == (told, text)


def test_only_what_passes_is_asked_again() -> None:
    assert Head(ok=False, error="Shard unavailable: shard 1 is restarting").may_pass
    assert not Head(ok=False, error="Shard unavailable: damaged", code="STORAGE_DAMAGED").may_pass
    assert not Head(ok=False, error="Job not found").may_pass


def test_the_id_of_a_webhook_is_taken_for_none_of_a_job() -> None:
    error = refusal(
        Refusal(error="Webhook not found"), webhooks.SetWebhookEnabled(id="hook-1", enabled=True), "host:1"
    )
    assert (type(error), error.job_id) == (NotFound, None)
    assert str(error).startswith("SetWebhookEnabled: Webhook not found")


def test_error_replies_are_raised_also_where_the_answer_has_no_fields() -> None:
    with pytest.raises(
        JobNotFound, match=r"^GetJob of job job-1: Job not found; it was removed, or never added"
    ):
        decode(jobs.OneJob, ok=False, error="Job not found")
    with pytest.raises(CommandFailed, match=r"no reason given"):
        decode(core.AckReply, ok=False)


def test_an_answer_of_another_shape_says_so() -> None:
    with pytest.raises(BunqueueError, match=r"unknown shape") as caught:
        decode(jobs.OneJob, ok=True, job=5)
    assert caught.value.code == "error"


def test_times_are_whole_numbers() -> None:
    job = decode(jobs.OneJob, ok=True, job={**JOB, "ttl": 5.0, "backoff": 1000.0, "progress": 12.5}).job
    values = (job.created_at_ms, job.run_at_ms, job.ttl, job.backoff)
    assert values == (1_700_000_000_000, 1_700_000_000_500, 5, 1000)
    assert all(type(value) is int for value in values)
    assert (job.progress, job.started_at) == (12.5, None)


def test_result_and_error_have_their_names() -> None:
    job = decode(jobs.OneJob, ok=True, job={**JOB, "returnvalue": [1], "failedReason": "boo", "new": 1}).job
    assert (job.result, job.error) == ([1], "boo")


def test_undefined_values_are_taken_for_absent() -> None:
    undefined = msgpack.ExtType(0, b"\0")
    job = decode(jobs.OneJob, ok=True, job={**JOB, "failedReason": undefined, "data": [1, undefined]}).job
    assert (job.error, job.data) == (None, [1, None])


def test_queues_may_be_named_or_described() -> None:
    reply = decode(jobs.NamesOfQueues, ok=True, queues=["a", {"name": "b", "waiting": 2}])
    assert reply.queues == ["a", jobs.QueueInfo("b", waiting=2)]
