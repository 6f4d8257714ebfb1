"""Words for people never fail a job: what cannot be stored is written so that it can be."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from bunqueue import ActiveJob, AsyncQueue, JobLogHandler, JobNotFound, Worker
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.client.conversion.words import MAX_LINE, MAX_MESSAGE, storable

PATIENCE_MS = 60_000
HALF = "half \udce9 \ud83d"


class Wordless:
    def __str__(self) -> str:
        raise SystemExit(3)


def test_what_is_made_of_words() -> None:
    assert storable(None) is None
    assert storable("as it is\n\0é😀") == "as it is\n\0é😀"
    assert storable(HALF) == r"half \udce9 \ud83d"
    assert storable(ValueError("x")) == "x"
    assert storable(b"\xff") == r"b'\xff'"
    assert storable(Wordless()) == "<Wordless>"
    assert storable("x" * 5000) == "x" * (MAX_MESSAGE - 3) + "..."
    assert len(storable("x" * 100_000, MAX_LINE)) == MAX_LINE


def speak(job: ActiveJob) -> Any:
    """All that a handler can say."""
    words: Any = [HALF, "x" * 100_000, Wordless(), 5]
    for number, each in enumerate(words):
        yield job.log(each)
        yield job.progress(number, each)
        job.log_soon(each)
    # Not by a logger: the test runner cannot keep such a record.
    record = logging.LogRecord("mine", logging.WARNING, "here.py", 1, "handled %s", (HALF,), None)
    JobLogHandler().emit(record)


async def in_loop(job: ActiveJob) -> str:
    for said in speak(job):
        await said
    return "done"


def in_thread(job: ActiveJob) -> str:
    list(speak(job))
    return "done"


@pytest.mark.parametrize(("handler", "run_in"), [(in_loop, None), (in_thread, None), (in_thread, "process")])
async def test_what_a_job_says_never_fails_it(
    where: EndpointOptions, handler: Any, run_in: Any, name: str
) -> None:
    options: Any = {} if run_in is None else {"run_in": run_in}
    async with (
        AsyncQueue(name, **where) as queue,
        Worker(name, handler, **options, **where),
    ):
        handle = await queue.add("n", max_attempts=1)
        outcome = await handle.wait(timeout=PATIENCE_MS)
        assert (outcome.state, outcome.error) == ("completed", None)
        lines = [line.message for line in await handle.logs()]
        assert lines[0] == r"half \udce9 \ud83d"
        assert r"handled half \udce9 \ud83d" in lines
        assert "<Wordless>" in lines


async def test_what_is_said_from_outside(where: EndpointOptions, name: str) -> None:
    async with AsyncQueue(name, **where) as queue:
        handle = await queue.add("n")
        await handle.log(HALF)
        assert [line.message for line in await handle.logs()] == [r"half \udce9 \ud83d"]
        taken = await queue.pull()
        assert taken is not None
        await handle.update_progress(5, HALF)
        assert (await handle.progress()).message == r"half \udce9 \ud83d"
        await handle.fail(HALF, lock_token=taken.lock_token, unrecoverable=True)
        assert (await handle.job()).error == r"half \udce9 \ud83d"
        waiting = await queue.add("n")
        await waiting.cancel(HALF)
        with pytest.raises(JobNotFound):
            await waiting.job()
        await queue.add("n")
        found = await queue.cancel_found(state="waiting", reason=HALF)
        assert found.changed == 1
