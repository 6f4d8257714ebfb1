"""The embedded engine of a process that forks: the file stays the parent's."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from bunqueue import AsyncQueue, BunqueueError, Queue
from shardproc.storage import database

# Python 3.12 warns of forks with threads; that they work is what this is about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "LOCK_WAIT_S", 0.3)


def run_in_child(target: Any, *arguments: Any) -> Any:
    answers = FORK.Queue()
    child = FORK.Process(target=target, args=(answers, *arguments))
    child.start()
    answer = answers.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    return answer


def _add(answers: Any, queue: Queue) -> None:
    try:
        answers.put(queue.add("child").id)
    except BunqueueError as error:
        answers.put(f"{type(error).__name__}: {error}")


def _add_anew(answers: Any, path: str) -> None:
    with Queue("q", embedded=True, data_path=path) as queue:
        _add(answers, queue)


def test_a_forked_child_does_not_write_to_the_file_of_its_parent(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    with Queue("q", embedded=True, data_path=path) as queue:
        queue.add("parent")
        for target, argument in ((_add, queue), (_add_anew, path)):
            answer = run_in_child(target, argument)
            assert answer.startswith("FileInUse:")
            assert "in use by another process" in answer
        queue.add("parent")
        assert queue.count() == 2
    with Queue("q", embedded=True, data_path=path) as queue:
        assert queue.count() == 2


def test_a_session_is_not_inherited(tmp_path: Path) -> None:
    """A child that goes on in the event loop of its parent."""
    path = str(tmp_path / "jobs.db")
    loop = asyncio.new_event_loop()
    queue = AsyncQueue("q", embedded=True, data_path=path)
    loop.run_until_complete(queue.add("parent"))

    def child(answers: Any) -> None:
        try:
            loop.run_until_complete(queue.add("child"))
            answers.put("added")
        except BunqueueError as error:
            answers.put(str(error))
        loop.run_until_complete(queue.close())

    assert "belongs to the parent of this process" in run_in_child(child)
    assert loop.run_until_complete(queue.count()) == 1
    loop.run_until_complete(queue.close())
    loop.close()


def test_a_child_does_not_keep_the_file_from_others(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    gate = FORK.Event()
    with Queue("q", embedded=True, data_path=path) as queue:
        queue.add("parent")
        child = FORK.Process(target=gate.wait)
        child.start()
    try:
        with Queue("q", embedded=True, data_path=path) as queue:
            assert queue.count() == 1
    finally:
        gate.set()
        child.join(60)


def test_a_child_may_have_a_file_of_its_own(tmp_path: Path) -> None:
    with Queue("q", embedded=True, data_path=str(tmp_path / "jobs.db")) as queue:
        queue.add("parent")
        assert ":" not in run_in_child(_add_anew, str(tmp_path / "own.db"))
