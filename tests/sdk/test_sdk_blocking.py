"""The blocking twin: the same questions and answers, from any thread, and after a fork."""

from __future__ import annotations

import asyncio
import itertools
import linecache
import multiprocessing
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.server import Server

from bunqueue import BunqueueError, JobCounts, JobHandle, NewJob, Queue
from bunqueue.client.connection import background_loop as portal_module


@pytest.fixture
def queue(shared_server: Server, name: str) -> Iterator[Queue]:
    with Queue(name, port=shared_server.port) as queue:
        yield queue


def test_the_whole_way(queue: Queue) -> None:
    handle = queue.add("n", {"x": 1}, priority=2)
    assert isinstance(handle, JobHandle)
    assert (handle.state(), queue.get_result(handle.id)) == ("prioritized", None)
    assert handle.job().data == {"x": 1}
    assert queue.get_job("nothing") is None
    many = queue.add_bulk([("a", 1), NewJob("b", 2, delay=60_000)])
    assert [each.state() for each in many] == ["waiting", "delayed"]
    assert queue.counts() == JobCounts(waiting=1, prioritized=1, delayed=1)
    assert (queue.count(), len(queue.get_jobs("waiting")), queue.dlq(), queue.retry_dlq()) == (3, 1, [], 0)


def test_errors_are_raised_where_the_call_is(queue: Queue) -> None:
    with pytest.raises(BunqueueError, match="nothing"):
        queue.handle("nothing").job()


def test_many_threads_use_one_queue(queue: Queue) -> None:
    with ThreadPoolExecutor(16) as threads:
        handles = list(threads.map(lambda number: queue.add("n", number), range(400)))
    assert len({handle.id for handle in handles}) == queue.count() == 400


def test_all_blocking_objects_share_one_thread(queue: Queue, shared_server: Server) -> None:
    """It is for what cannot be done in the caller's own; here for embedded queues."""
    with Queue("sdk-blocking-other", embedded=True) as other, Queue("sdk-third", embedded=True) as third:
        for each in (other, third, queue):
            each.add("n")
        assert [thread.name for thread in threading.enumerate()].count("bunqueue") == 1


def test_a_closed_queue_stays_closed(queue: Queue) -> None:
    handle = queue.add("n")
    queue.close()
    queue.close()
    for call in (lambda: queue.add("n"), handle.state, handle.wait):
        with pytest.raises(BunqueueError, match="is closed; open a new one"):
            call()


def test_a_call_in_the_background_loop_is_refused_instead_of_waiting_for_ever(queue: Queue) -> None:
    async def wrong() -> None:
        queue.add("n")

    with pytest.raises(RuntimeError, match="would never end; use AsyncQueue"):
        portal_module.portal().run(wrong())


def _child(queue: Queue, answers: Any) -> None:
    before = os.getpid()
    answers.put((before, [queue.add("child", number).id for number in range(20)], queue.counts().waiting > 0))


# Python 3.12 warns of forks with threads; that they work is what this is about.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_a_connection_of_its_own(queue: Queue) -> None:
    queue.add("parent")
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    children = [context.Process(target=_child, args=(queue, answers)) for _ in range(3)]
    for child in children:
        child.start()
    mine = [queue.add("parent", number).id for number in range(20)]
    theirs = [answers.get(timeout=60) for _ in children]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    ids = {*mine, *itertools.chain.from_iterable(ids for _, ids, _ in theirs)}
    assert len(ids) == 80
    assert queue.count() == 81
    assert all(alive for _, _, alive in theirs)


def test_a_queue_that_is_never_closed_is_closed_at_the_end(shared_server: Server) -> None:
    program = f"from bunqueue import Queue; q = Queue('sdk-left-open', port={shared_server.port}); q.add('n')"
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_blocking_call_in_a_running_loop_warns_once_with_its_line(shared_server: Server) -> None:
    async def main() -> None:
        with Queue("blocks-a-loop", port=shared_server.port) as queue:
            for _ in range(3):
                queue.add("n", 1)  # THE LINE
            await asyncio.to_thread(queue.add, "n", 2)

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        asyncio.run(main())
    (said,) = [each for each in found if issubclass(each.category, RuntimeWarning)]
    assert "a blocking call in a running event loop" in str(said.message)
    assert (said.filename, "THE LINE" in linecache.getline(said.filename, said.lineno)) == (__file__, True)
