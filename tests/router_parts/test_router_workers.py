"""Registered workers: entered, updated, heard, gone with their connection."""

from __future__ import annotations

from typing import Any

import pytest

from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.workers import Heartbeat, RegisterWorker
from bunqueue.server.commands.workers import MAX_NAMES, MAX_PER_CONNECTION, MAX_QUEUES, STALE_MS, Workers

NOW = 1_700_000_000_000


def register(workers: Workers, conn: int = 1, now: int = NOW, **fields: Any) -> str:
    command = RegisterWorker(**{"name": "w", "queues": ["q"], **fields})
    return workers.register(conn, command, now).data.worker_id


def ids(workers: Workers, now: int = NOW) -> list[str]:
    return [worker.id for worker in workers.listing(now).workers]


def test_what_it_says_of_itself_is_shown() -> None:
    workers = Workers()
    fields: dict[str, Any] = {
        "worker_id": "mine",
        "concurrency": 4,
        "hostname": "h",
        "pid": 7,
        "started_at": NOW - 1000.0,
    }
    register(workers, **fields)
    (shown,) = workers.listing(NOW + 500).workers
    assert (shown.id, shown.name, shown.queues, shown.concurrency) == ("mine", "w", ["q"], 4)
    assert (shown.hostname, shown.pid, shown.status) == ("h", 7, "active")
    assert (shown.registered_at_ms, shown.last_seen_ms, shown.uptime) == (NOW - 1000, NOW, 1500)
    assert (shown.active_jobs, shown.processed_jobs, shown.failed_jobs, shown.current_job) == (0, 0, 0, None)


def test_heartbeats_bring_counts_and_keep_what_they_do_not_say() -> None:
    workers = Workers()
    worker = register(workers)
    workers.heartbeat(Heartbeat(id=worker, active_jobs=2, processed=10, failed=1, current_job="j"), NOW + 1)
    workers.heartbeat(Heartbeat(id=worker, processed=11), NOW + 2)
    (shown,) = workers.listing(NOW).workers
    assert (shown.active_jobs, shown.processed_jobs, shown.failed_jobs) == (2, 11, 1)
    assert (shown.last_seen_ms, shown.current_job) == (NOW + 2, None)


def test_the_silent_are_stale_until_they_are_heard() -> None:
    workers = Workers()
    worker = register(workers)
    assert workers.listing(NOW + STALE_MS).workers[0].status == "active"
    assert workers.listing(NOW + STALE_MS + 1).workers[0].status == "stale"
    assert workers.stats(NOW + STALE_MS + 1).active == 0
    workers.heartbeat(Heartbeat(id=worker), NOW + STALE_MS + 2)
    assert workers.stats(NOW + STALE_MS + 2).active == 1


def test_a_registration_ends_with_its_connection() -> None:
    workers = Workers()
    first, second, other = register(workers), register(workers), register(workers, conn=2)
    workers.disconnected(3)
    assert ids(workers) == [first, second, other]
    workers.disconnected(1)
    assert ids(workers) == [other]
    workers.disconnected(1)
    assert ids(workers) == [other]


def test_the_same_id_again_updates_and_moves_to_the_new_connection() -> None:
    workers = Workers()
    register(workers, conn=1, worker_id="mine", hostname="h", pid=3)
    workers.heartbeat(Heartbeat(id="mine", processed=5), NOW)
    register(workers, conn=2, worker_id="mine", name="new", queues=["a", "b"], concurrency=9)
    workers.disconnected(1)
    (shown,) = workers.listing(NOW).workers
    assert (shown.name, shown.queues, shown.concurrency) == ("new", ["a", "b"], 9)
    assert (shown.hostname, shown.pid, shown.processed_jobs) == ("h", 3, 5)
    workers.disconnected(2)
    assert ids(workers) == []


def test_unregistered_is_gone_and_unknown() -> None:
    workers = Workers()
    worker = register(workers)
    assert workers.unregister(worker).data.removed
    for refused in (lambda: workers.unregister(worker), lambda: workers.heartbeat(Heartbeat(id=worker), NOW)):
        with pytest.raises(CommandError, match="Worker not found"):
            refused()
    workers.disconnected(1)


def test_totals_never_go_back() -> None:
    """They are counters for Prometheus."""
    workers = Workers()
    for conn in (1, 2):
        workers.heartbeat(
            Heartbeat(id=register(workers, conn=conn, concurrency=3), processed=10, failed=2), NOW
        )
    workers.disconnected(1)
    stats = workers.stats(NOW)
    assert (stats.total, stats.total_processed, stats.total_failed) == (1, 20, 4)
    assert (stats.concurrency_slots, stats.active_jobs) == (3, 0)


def test_one_connection_cannot_fill_the_list() -> None:
    workers = Workers()
    for number in range(MAX_PER_CONNECTION):
        register(workers, worker_id=str(number))
    with pytest.raises(CommandError, match=f"max {MAX_PER_CONNECTION}"):
        register(workers)
    register(workers, worker_id="5", name="again")
    assert len(ids(workers)) == MAX_PER_CONNECTION
    register(workers, conn=2)


def test_one_connection_cannot_name_queues_without_end() -> None:
    workers = Workers()
    names = [f"q{number}" for number in range(MAX_QUEUES // 2)]
    for worker_id in ("a", "b"):
        register(workers, worker_id=worker_id, queues=names)
    with pytest.raises(CommandError, match=f"max {MAX_QUEUES}"):
        register(workers, worker_id="c", queues=["q"])
    assert ids(workers) == ["a", "b"]
    register(workers, worker_id="b", queues=names[1:])
    register(workers, worker_id="c", queues=["q", "q"])
    assert workers.by_queue["q"].workers == 1, "a queue that is named twice counts once"
    register(workers, conn=2, queues=names)


def test_queue_names_are_checked() -> None:
    with pytest.raises(CommandError, match="invalid characters"):
        register(Workers(), queues=["good", "not good"])


def test_who_needs_to_know_is_told_of_the_first_and_the_last_worker_of_a_queue() -> None:
    told: list[tuple[str, bool]] = []
    workers = Workers(lambda queue: told.append((queue, queue in workers.by_queue)))
    register(workers, conn=1, worker_id="a", queues=["q", "r"])
    register(workers, conn=2, worker_id="b", queues=["q"])
    assert told == [("q", True), ("r", True)]
    register(workers, conn=1, worker_id="a", queues=["q"])
    assert told[2:] == [("r", False)]
    workers.disconnected(1)
    workers.unregister("b")
    assert told[3:] == [("q", False)]
    assert not workers.by_queue


def test_what_a_queues_workers_run_is_known_while_all_of_them_say_so() -> None:
    told: list[list[str] | None] = []
    workers = Workers(lambda queue: told.append(workers.names_of([queue]).get(queue)))
    register(workers, worker_id="a", names=["mail", "mail", "call"])
    register(workers, worker_id="b", names=["mail"])
    assert told == [["mail", "call"]], "the second one brings nothing new"
    register(workers, worker_id="c", names=["post"])
    register(workers, worker_id="d")
    register(workers, worker_id="e", names=["other"])
    assert told[1:] == [["mail", "call", "post"], None], "d does not say, and so may run everything"
    workers.unregister("d")
    workers.unregister("a")
    workers.unregister("c")
    workers.unregister("e")
    assert told[3:] == [
        ["mail", "call", "post", "other"],
        ["mail", "post", "other"],
        ["mail", "other"],
        ["mail"],
    ]
    assert [each.names for each in workers.listing(NOW).workers] == [["mail"]]
    register(workers, worker_id="b", names=[])
    assert told[-1] == []


def test_a_worker_may_run_other_jobs_in_each_of_its_queues() -> None:
    workers = Workers()
    here: dict[str, Any] = {"worker_id": "a", "queues": ["q", "r", "s"]}
    register(workers, **here, names=["mail", "call"], names_by_queue={"q": ["mail", "mail"], "r": ["call"]})
    assert workers.names_of(["q", "r", "s"]) == {"q": ["mail"], "r": ["call"], "s": ["mail", "call"]}
    (shown,) = workers.listing(NOW).workers
    assert (shown.names, shown.names_by_queue) == (["mail", "call"], {"q": ["mail"], "r": ["call"]})
    register(workers, **here, names_by_queue={"r": ["post"]})
    assert workers.names_of(["q", "r", "s"]) == {"r": ["post"]}, "of the others it does not say"
    with pytest.raises(CommandError, match="no queue 'other'") as caught:
        register(workers, **here, names_by_queue={"other": ["post"]})
    assert (caught.value.code, caught.value.field) == ("INVALID_FIELD", "namesByQueue")
    assert workers.names_of(["r"]) == {"r": ["post"]}, "what was refused has changed nothing"
    workers.disconnected(1)
    assert not workers.by_queue


def test_one_connection_cannot_name_jobs_without_end() -> None:
    workers = Workers()
    names = [f"n{number}" for number in range(MAX_NAMES // 20)]
    register(workers, worker_id="a", queues=[f"q{number}" for number in range(19)], names=names)
    with pytest.raises(CommandError, match=f"max {MAX_NAMES}") as caught:
        register(workers, worker_id="b", queues=["q", "r"], names=names)
    assert (caught.value.code, caught.value.field) == ("TOO_MANY_WORKERS", "names")
    assert ids(workers) == ["a"]
    register(workers, worker_id="b", names=names)
    with pytest.raises(CommandError, match=f"max {MAX_NAMES}"):
        register(workers, worker_id="c", names_by_queue={"q": ["one"]})
    register(workers, conn=2, names=names)
