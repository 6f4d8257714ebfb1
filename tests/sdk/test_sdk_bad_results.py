"""Results that cannot be sent: the handler has run, so it does not run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.msgpack import Ext
from support import in_process
from support.waiting import eventually

from bunqueue import ActiveJob, AsyncQueue, Bunqueue, Job, JobFailed, ResultError, Worker
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.worker.reporting import results

RETRYING: Any = {"max_attempts": 3, "backoff": 1}


@pytest.fixture
def mails(tmp_path: Path) -> Path:
    return tmp_path / "mails"


async def dead(queue: AsyncQueue, worker: Worker) -> Job:
    """The only job of the queue, when it has ended."""
    await eventually(lambda: worker.stats.failed > 0, "the job has failed")
    (job,) = await queue.get_jobs()
    assert job.state == "failed", f"{job.state} after {job.attempts} attempts"
    return job


async def mail_async(job: ActiveJob) -> object:
    return in_process.mail(job)


@pytest.mark.parametrize(
    ("handler", "run_in"), [(mail_async, None), (in_process.mail, "thread"), (in_process.mail, "process")]
)
async def test_a_handler_whose_result_cannot_be_encoded_runs_once(
    where: EndpointOptions, mails: Path, handler: Any, run_in: Any, name: str
) -> None:
    async with AsyncQueue(name, default_job_options=RETRYING, **where) as queue:
        await queue.add("mail", str(mails))
        async with Worker(queue.name, handler, run_in=run_in, **where) as worker:
            job = await dead(queue, worker)
    assert mails.read_text() == "sent\n"  # noqa: ASYNC240
    assert job.error is not None
    assert job.error.startswith(
        "ResultError: the result of the handler cannot be encoded: object at ['mails'][0]['sent'] (TypeError:"
    )


async def test_a_result_that_is_too_large_runs_no_handler_again(
    where: EndpointOptions, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(results, "MAX_FRAME", 10_000)
    runs = []

    async def handler(job: ActiveJob) -> str:
        runs.append(job.attempts)
        return "x" * 10_001

    async with AsyncQueue(name, default_job_options=RETRYING, **where) as queue:
        await queue.add("n")
        async with Worker(queue.name, handler, **where) as worker:
            job = await dead(queue, worker)
    assert runs == [0]
    assert "has 10004 bytes, at most 10000 can be sent" in str(job.error)


@pytest.mark.parametrize("given", [[object()], ["one", "too many"]], ids=["object", "count"])
async def test_a_batch_whose_results_cannot_be_used_runs_once(
    where: EndpointOptions, given: list[object], name: str
) -> None:
    app = Bunqueue(name, **where)
    runs = []

    @app.batch("mail", size=1)
    async def mail(jobs: list[ActiveJob]) -> list[object]:
        runs.append(jobs[0].attempts)
        return given

    handle = await app.add_async("mail", **RETRYING)
    async with app:
        with pytest.raises(JobFailed):
            await handle.result(timeout=60_000)
        job = await handle.job()
    assert (job.state, runs) == ("failed", [0])
    assert "ResultError" in str(job.error)


async def test_a_typed_job_whose_result_cannot_be_encoded_runs_once(
    where: EndpointOptions, name: str
) -> None:
    app = Bunqueue(name, **where)
    runs = []

    @app.job(**RETRYING)
    async def mail() -> list[int]:
        runs.append(1)
        return [2**70]

    handle = await mail.add_async()
    async with app:
        with pytest.raises(JobFailed):
            await handle.result(timeout=60_000)
        job = await handle.job()
    assert (job.state, runs) == ("failed", [1])
    assert "the result of job 'mail' cannot be encoded: int at [0]" in str(job.error)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (object(), "object ("),
        ({"a": (1, {"b": object()})}, "object at ['a'][1]['b'] ("),
        ({"text": "\ud800"}, "str at ['text'] ('\\ud800' has half a character"),
        ([2**64], "int at [0] (it is beyond 64 bits"),
        ({object(): 1}, "object at [key <object"),
    ],
)
def test_the_error_names_the_value_and_its_place(value: object, place: str) -> None:
    with pytest.raises(ResultError) as caught:
        results.encode_result(value)
    assert f"cannot be encoded: {place}" in str(caught.value)


def test_a_result_that_contains_itself_is_refused() -> None:
    loop: list[object] = []
    loop.append({"again": loop})
    with pytest.raises(ResultError, match="cannot be encoded: "):
        results.encode_result(loop)


def test_a_result_of_another_process_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ResultError, match="cannot be read back"):
        results.decode_result(results.encode_result(Ext(-1, b"xx")))
