"""The server is killed while workers hold jobs, and comes back to the same port and data.

A line on standard output asks for it, a line on standard input says that it is done.
"""

from __future__ import annotations

import threading
from typing import Any

from support import job_name, new_queue, reaches, until, work

from bunqueue import BunqueueError

JOBS = 200


def ask(word: str) -> None:
    print(f"@{word}", flush=True)
    assert input() == "done"


def main() -> None:
    queue = new_queue()
    lock, runs, errors = threading.Lock(), {}, []
    held, go_on = threading.Event(), threading.Event()

    def handle(job: Any) -> Any:
        with lock:
            runs[job.id] = runs.get(job.id, 0) + 1
        if job_name(job) == "held":
            held.set()
            go_on.wait(60)
        return job.data["n"]

    delayed = queue.add("delayed", {"n": -1}, delay=1000)
    job = queue.add("held", {"n": -2})
    worker = work(queue.name, handle, concurrency=4, heartbeat_interval_s=0.5, lock_ttl_ms=20_000)
    worker.on("error", errors.append)
    held.wait(30)
    until(
        "its lock was renewed",
        lambda: queue.get_job(job.id).raw["lastHeartbeat"] > queue.get_job(job.id).started_at,
    )
    ask("kill")
    try:
        queue.add("meanwhile", {"n": 0})
    except BunqueueError:
        pass
    else:
        raise AssertionError("an add without a server must fail")
    ask("start")
    until("the client has reconnected", lambda: connected(queue))
    ids = queue.add_bulk([{"name": "more", "data": {"n": n}} for n in range(JOBS)])
    until("the worker has reconnected", lambda: queue.get_completed_count() == JOBS + 1)
    go_on.set()  # not before: the client gives up an ack for which it has no connection
    for job_id, result in ((job.id, -2), (delayed.id, -1), (ids[0], 0), (ids[-1], JOBS - 1)):
        reaches(queue, job_id, "completed")
        assert queue.get_result(job_id) == result, (job_id, queue.get_result(job_id))
    until("all are done", lambda: queue.get_completed_count() == JOBS + 2)
    assert set(runs.values()) == {1}, {key: value for key, value in runs.items() if value > 1}
    assert errors, "the worker has noticed nothing"
    worker.close()


def connected(queue: Any) -> bool:
    try:
        return bool(queue.count() >= 0)
    except BunqueueError:
        return False


if __name__ == "__main__":
    main()
