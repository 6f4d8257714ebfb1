"""Django's tasks on bunqueue: in a sandbox, and with the command as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.server import Server
from support.waiting import wait_until

SITE = Path(__file__).parent / "site"
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
sys.path.insert(0, str(SITE))

import django  # noqa: E402  # needs the settings

django.setup()

from django.core import checks  # noqa: E402
from django.core.management import CommandError, call_command  # noqa: E402
from django.utils import timezone  # noqa: E402
from shop import tasks  # noqa: E402

from bunqueue import Queue  # noqa: E402
from bunqueue.integrations.django import BunqueueBackend, run_task  # noqa: E402
from bunqueue.integrations.django.compat import (  # noqa: E402
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from bunqueue.testing import Sandbox  # noqa: E402


@pytest.fixture
def signals() -> Iterator[list[tuple[str, str]]]:
    seen: list[tuple[str, str]] = []

    def note(name: str) -> Any:
        def receive(sender: type, task_result: Any, **kwargs: Any) -> None:
            assert sender is BunqueueBackend
            seen.append((name, task_result.status))

        return receive

    named = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    receivers = [(each, note(name)) for name, each in named.items()]
    for each, receiver in receivers:
        each.connect(receiver)
    yield seen
    for each, receiver in receivers:
        each.disconnect(receiver)


def test_a_task_becomes_a_job_and_its_result_is_found(
    bunqueue: Sandbox, signals: list[tuple[str, str]]
) -> None:
    result = tasks.add.enqueue(40, two=2)
    assert (result.status, result.is_finished) == (TaskResultStatus.READY, False)
    data = {"args": [40], "kwargs": {"two": 2}}
    bunqueue.assert_added("default", "shop.tasks.add", data, max_attempts=1)
    (run,) = bunqueue.drain(run_task)
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 42, 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert tasks.add.get_result(run.id).return_value == 42
    assert signals == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "SUCCESSFUL")]


def test_coroutines_priorities_and_times(bunqueue: Sandbox) -> None:
    result = tasks.add_later.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1, 2)
    job = bunqueue.assert_added("slow", "shop.tasks.add_later", priority=5)
    assert 3_000_000 < job.run_at_ms - job.created_at_ms <= 3_600_000
    assert bunqueue.drain(run_task) == []
    bunqueue.drain(run_task, within=timedelta(hours=1))
    result.refresh()
    assert result.return_value == 3


async def test_from_a_coroutine(bunqueue: Sandbox) -> None:
    result = await tasks.add.aenqueue(1, 2)
    await bunqueue.drain_async(run_task)
    await result.arefresh()
    assert result.return_value == 3


def test_a_task_that_fails(bunqueue: Sandbox, signals: list[tuple[str, str]]) -> None:
    result = tasks.broken.enqueue()
    bunqueue.drain(run_task)
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert result.finished_at is not None
    (error,) = result.errors
    assert error.exception_class is ConnectionError
    assert "in broken" in error.traceback
    assert signals[-1] == ("finished", "FAILED")


def test_a_traceback_is_kept_whole_with_the_innermost_call_at_its_end(bunqueue: Sandbox) -> None:
    result = tasks.deeply_broken.enqueue()
    bunqueue.drain(run_task)
    result.refresh()
    (error,) = result.errors
    assert error.exception_class is LookupError
    lines = error.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "LookupError: down here"
    assert lines[-2].strip() == 'raise LookupError("down here")'
    assert "in deeply_broken" in error.traceback


def test_the_end_of_a_task_is_told_when_it_is_the_end(
    bunqueue: Sandbox, signals: list[tuple[str, str]]
) -> None:
    tasks.hopeless.enqueue()
    bunqueue.drain(run_task)
    assert signals == [("enqueued", "READY"), ("started", "RUNNING"), ("finished", "FAILED")]
    signals.clear()
    tasks.put_off.enqueue()
    bunqueue.drain(run_task)
    assert signals == [("enqueued", "READY"), ("started", "RUNNING")]


def test_attempts_where_the_settings_say_so(bunqueue: Sandbox, signals: list[tuple[str, str]]) -> None:
    result = tasks.flaky.enqueue(3)
    bunqueue.drain(run_task)
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.READY, 1, 1)
    bunqueue.drain(run_task, within=timedelta(minutes=1))
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 3)
    assert [name for name, _ in signals] == ["enqueued", "started", "started", "started", "finished"]


def test_the_context_of_a_task(bunqueue: Sandbox) -> None:
    result = tasks.attempt.enqueue("word")
    bunqueue.drain(run_task)
    result.refresh()
    assert result.return_value == ["word", 1, result.id]


def test_database_connections_are_closed_with_each_job(
    bunqueue: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connection

    monkeypatch.setitem(connection.settings_dict, "NAME", str(tmp_path / "site.db"))
    for _ in range(2):
        tasks.ask_the_database.enqueue()
    assert [run.result for run in bunqueue.drain(run_task)] == [42, 42]
    assert connection.connection is None
    first, second = tasks.connections
    assert first[1] is not second[1]


@pytest.mark.parametrize(
    "name", ["shop.tasks.no_task", "os.getcwd", "nothing.at.all", "shop.unrelated.task", "add", ".add", ""]
)
def test_what_is_no_task_is_neither_run_nor_imported(bunqueue: Sandbox, name: str) -> None:
    data = {"args": [], "kwargs": {}, "backend": "default"}
    job = Queue("default").add(name or "x", data, max_attempts=5)
    (run,) = bunqueue.drain(run_task)
    assert type(run.error).__name__ == "TaskUnknown"
    assert job.state() == "failed", "no other attempt would help"
    assert "shop.unrelated" not in sys.modules
    with pytest.raises(TaskResultDoesNotExist, match="is not that of a task"):
        task_backends["default"].get_result(job.id)


@pytest.mark.parametrize(
    ("queue", "data", "why"),
    [
        ("default", {"args": [], "kwargs": {}, "backend": "nobody"}, "TASKS has no backend 'nobody'"),
        ("default", {"args": [], "kwargs": {}, "backend": ["default"]}, "TASKS has no backend"),
        ("default", {"args": [], "kwargs": {}}, "TASKS has no backend None"),
        ("default", {"args": 3, "kwargs": {}, "backend": "default"}, "no list of args"),
        ("default", {"args": [], "kwargs": [], "backend": "default"}, "no map of kwargs"),
        ("default", [1], "TASKS has no backend None"),
        ("other", {"args": [1, 2], "kwargs": {}, "backend": "default"}, "not one of the backend's QUEUES"),
    ],
)
def test_a_job_that_is_not_as_the_backend_makes_them_is_not_run(
    bunqueue: Sandbox, queue: str, data: Any, why: str
) -> None:
    job = Queue(queue).add("shop.tasks.add", data, max_attempts=5)
    (run,) = bunqueue.drain(run_task)
    assert why in str(run.error)
    assert job.state() == "failed"


def test_a_task_of_a_module_that_the_options_name(bunqueue: Sandbox) -> None:
    Queue("default").add("shop.mails.mail", {"args": ["ada"], "kwargs": {}, "backend": "default"})
    (run,) = bunqueue.drain(run_task)
    assert run.result == "to ada"


def test_results_of_what_is_not_there(bunqueue: Sandbox) -> None:
    for job_id in ("nobody", Queue("default").add("n", {"x": 1}).id):
        with pytest.raises(TaskResultDoesNotExist):
            tasks.add.get_result(job_id)


def test_wrong_options_are_found_by_the_checks() -> None:
    assert not [error for error in checks.run_checks() if error.id == "bunqueue.E001"]
    backend = BunqueueBackend("wrong", {"OPTIONS": {"colour": "red"}})
    (error,) = [error for error in backend.check() if error.id == "bunqueue.E001"]
    assert error.msg.startswith("TASKS['wrong']['OPTIONS']: ")
    assert "colour" in error.msg


def test_the_command_wants_queues_to_work_on() -> None:
    with pytest.raises(CommandError, match="say which to work on with --queues"):
        call_command("bunqueue_worker", backend="patient")


def test_the_worker_command(server: Server, tmp_path: Path) -> None:
    environ = os.environ | {
        "BUNQUEUE_URL": f"bunqueue://127.0.0.1:{server.port}",
        "SITE_DB": str(tmp_path / "site.db"),
    }
    backend = BunqueueBackend("default", {"OPTIONS": {"url": environ["BUNQUEUE_URL"]}, "QUEUES": []})
    ids = [
        backend.enqueue(task, args, {}).id for task, args in ((tasks.add, [1, 2]), (tasks.add_later, [3, 4]))
    ]
    ids.append(backend.enqueue(tasks.ask_the_database, [], {}).id)
    worker = subprocess.Popen(
        [sys.executable, "manage.py", "bunqueue_worker", "--concurrency", "2"],
        cwd=SITE,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    with worker:
        assert worker.stdout is not None
        try:
            wait_until(lambda: all(backend.get_result(each).is_finished for each in ids), "all are done")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        finally:
            worker.kill()
        assert worker.stdout.read() == "bunqueue_worker: working on default, slow\n"
    assert [backend.get_result(each).return_value for each in ids] == [3, 7, 42]
    backend.close()
