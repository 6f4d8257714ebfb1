"""Adding, looking, changing, removing."""

from __future__ import annotations

import pytest
from support import job_name, new_queue, unique

from bunqueue import CommandError, CommandTimeoutError, SerializationError


def test_a_job_comes_back_as_it_was_added() -> None:
    queue = new_queue()
    assert queue.ping()
    added = queue.add("send", {"to": "ada", "list": [1, None, {"deep": True}]}, priority=3, tags=["a"])
    job = queue.get_job(added.id)
    assert (job.id, job.queue, job_name(job)) == (added.id, queue.name, "send")
    assert job.data == {"to": "ada", "list": [1, None, {"deep": True}]}
    assert (job.state, job.priority, job.tags) == ("prioritized", 3, ["a"])
    assert isinstance(job.created_at, int)


def test_data_of_every_kind() -> None:
    queue = new_queue()
    for data in ("text ✓", 42.5, [1, "two"], {"large": 2**53 - 1, "bytes": b"raw", "none": None}):
        kept = data if isinstance(data, dict) else {"payload": data}
        assert queue.get_job(queue.add("x", data).id).data == kept
    assert queue.get_job(queue.add("x").id).data == {}


def test_options_are_kept() -> None:
    queue, own = new_queue(), unique("own")
    queue.add(
        "all",
        {},
        job_id=own,
        delay=500_000,
        attempts=5,
        backoff={"type": "fixed", "delay": 7},
        timeout=30_000,
        ttl=900_000,
        unique_key=unique("key"),
        group_id="g",
        lifo=True,
        durable=True,
        remove_on_complete=True,
        remove_on_fail=True,
        stack_trace_limit=3,
    )
    raw = queue.get_job(own).raw
    kept = {
        "id": own,
        "customId": own,
        "maxAttempts": 5,
        "backoffConfig": {"type": "fixed", "delay": 7},
        "timeout": 30_000,
        "ttl": 900_000,
        "groupId": "g",
        "lifo": True,
        "durable": True,
        "removeOnComplete": True,
        "removeOnFail": True,
        "stackTraceLimit": 3,
        "state": "delayed",
    }
    assert {name: raw[name] for name in kept} == kept


def test_bulk() -> None:
    queue, own = new_queue(), unique("own")
    ids = queue.add_bulk(
        [
            {"name": "plain", "data": {"n": 1}},
            {"name": "first", "data": {"n": 2}, "priority": 3, "job_id": own},
            {"name": "later", "delay": 90_000},
        ]
    )
    assert ids[1] == own
    assert [queue.get_state(job_id) for job_id in ids] == ["waiting", "prioritized", "delayed"]
    assert queue.get_job_by_custom_id(own).data == {"n": 2}
    counts = queue.get_job_counts()
    assert (counts["waiting"], counts["prioritized"], counts["delayed"]) == (1, 1, 1)
    assert (queue.count(), queue.get_waiting_count(), queue.get_delayed_count()) == (3, 1, 1)
    assert [job_name(job) for job in queue.get_prioritized()] == ["first"]
    assert len(queue.get_jobs(["waiting", "delayed"])) == 2
    assert queue.get_counts_per_priority() == {"0": 2, "3": 1}
    thousand = queue.add_bulk([{"name": "many", "data": n} for n in range(1000)])
    assert (len(set(thousand)), queue.count()) == (1000, 1003)
    assert len(queue.get_jobs(start=0, end=1000)) == 1000


def test_deduplication() -> None:
    queue, key = new_queue(), unique("key")
    first = queue.add("a", {"n": 1}, deduplication={"id": key, "ttl": 60_000})
    again = queue.add("a", {"n": 2}, deduplication={"id": key, "ttl": 60_000})
    assert again.id == first.id
    other = queue.add("a", {"n": 3}, deduplication={"id": key, "ttl": 60_000, "replace": True})
    assert (queue.get_state(first.id), queue.get_job(other.id).data) == ("unknown", {"n": 3})
    own = unique("own")
    ids = {queue.add("b", {"n": n}, job_id=own).id for n in range(3)}
    assert (ids, queue.get_job(own).data) == ({own}, {"n": 0})


def test_changes_of_a_waiting_job() -> None:
    queue = new_queue()
    job = queue.add("a", {"n": 1}, delay=60_000)
    job.update_data({"n": 2})
    job.change_priority(7)
    job.promote()
    changed = queue.get_job(job.id)
    assert (changed.data, changed.priority, changed.state) == ({"n": 2}, 7, "prioritized")
    job.change_delay(60_000)
    assert (job.get_state(), queue.promote_jobs(5), job.get_state()) == ("delayed", 1, "prioritized")
    job.remove()
    assert queue.get_job(job.id) is None
    with pytest.raises(CommandError):
        job.remove()


def test_logs() -> None:
    queue = new_queue()
    job = queue.add("a")
    job.log("one", "warn")
    job.log("two")
    logs = queue.get_job_logs(job.id)
    assert [(log["message"], log["level"]) for log in logs] == [("one", "warn"), ("two", "info")]
    queue.clear_job_logs(job.id, 1)
    assert [log["message"] for log in queue.get_job_logs(job.id)] == ["two"]


def test_ruling_over_a_queue() -> None:
    queue = new_queue()
    queue.add_bulk([{"name": "a"}, {"name": "b", "delay": 60_000}])
    queue.pause()
    assert (queue.is_paused(), queue.get_job_counts()["paused"]) == (True, 1)
    queue.resume()
    assert not queue.is_paused()
    assert queue.name in queue.list_queues()
    assert (queue.clean(0, 10, "delayed"), queue.drain()) == (1, 1)
    queue.add("c")
    queue.obliterate()
    assert (queue.count(), queue.get_stats()["active"]) == (0, 0)


def test_webhooks() -> None:
    queue = new_queue()
    hook = queue.add_webhook("https://example.com/hook", ["job.completed"], queue.name, "secret")
    (known,) = [entry for entry in queue.list_webhooks() if entry["id"] == hook]
    assert (known["url"], known["enabled"]) == ("https://example.com/hook", True)
    queue.set_webhook_enabled(hook, False)
    queue.remove_webhook(hook)
    with pytest.raises(CommandError):
        queue.add_webhook("http://localhost/x", ["job.completed"])


def test_errors_say_what_is_wrong() -> None:
    queue = new_queue()
    for options, reason in (
        ({"priority": 2_000_000}, "priority must be at most 1000000"),
        ({"delay": -1}, "delay must be at least 0"),
        ({"attempts": 0}, "maxAttempts must be at least 1"),
        ({"depends_on": ["none"]}, "Dependency job not found: none"),
        ({"repeat": {"every": 0}}, "repeat.every must be"),
    ):
        with pytest.raises(CommandError, match=reason):
            queue.add("x", {}, **options)
    with pytest.raises(CommandError, match="invalid characters"):
        new_queue("bad name").add("x")
    with pytest.raises(CommandError, match="too large"):
        queue.add("x", "y" * (11 << 20))
    with pytest.raises(SerializationError):
        queue.add("x", {"set": object()})
    assert queue.count() == 0


def test_nine_megabytes() -> None:
    queue = new_queue()
    job = queue.add("large", {"text": "z" * (9 << 20)})
    assert len(queue.get_job(job.id).data["text"]) == 9 << 20


def test_what_is_not_there() -> None:
    queue = new_queue()
    assert (queue.get_job("none"), queue.get_state("none")) == (None, "unknown")
    assert (queue.get_children_values("none"), queue.get_result("none")) == ({}, None)
    job = queue.add("waits")
    with pytest.raises(CommandTimeoutError):
        queue.wait_for_job(job.id, 100)
    with pytest.raises(CommandError):
        queue.update_job_data("none", {})


def test_hello() -> None:
    """It speaks of version 2, so that is what it gets from then on."""
    queue = new_queue()
    assert queue.connection.hello()["protocolVersion"] == 2
    queue.add("x", {}, priority=1)
    assert queue.get_job_counts()["waiting"] == 1
