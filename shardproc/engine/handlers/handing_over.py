"""Hands parked commands over when another host takes over the shard: they are sent again there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bunqueue.protocol.codec import encode_reply
from bunqueue.protocol.commands import Command
from bunqueue.protocol.commands.core import Pull, PullBatch
from bunqueue.protocol.commands.events import WaitJob, WaitJobs

from ..scoped import as_sent
from ..state import Client, JobWait, State, Waiter


def parked(state: State) -> Iterator[tuple[Client, bytes]]:
    """The commands that wait for a job or for the end of a job, each with its client and its remaining time.
    This shard no longer answers them."""
    for until, _, waiter in sorted(state.poll_ends.entries, key=lambda entry: entry[:2]):
        if not waiter.done and not waiter.client.closed:
            waiter.done = True
            command = _pull(waiter, max(1, until - state.now))
            yield waiter.client, encode_reply(as_sent(waiter.client, command))
    for until, _, wait in sorted(state.wait_ends.entries, key=lambda entry: entry[:2]):
        if not wait.done and not wait.client.closed:
            wait.done = True
            asked = _wait(state, wait, max(1, until - state.now))
            yield wait.client, encode_reply(as_sent(wait.client, asked))


def _pull(waiter: Waiter, timeout: int) -> Command:
    fields: dict[str, Any] = {
        "queue": waiter.queue,
        "timeout": timeout,
        "owner": waiter.owner or None,
        "lock_ttl": waiter.lock_ttl,
        "detach": waiter.detach,
        "group": waiter.group,
        "signals": waiter.client.signals,
        "own_timeouts": waiter.client.own_timeouts,
        "req_id": waiter.req_id,
    }
    return Pull(**fields) if waiter.count is None else PullBatch(count=waiter.count, **fields)


def _wait(state: State, wait: JobWait, timeout: int) -> Command:
    if not wait.many:
        return WaitJob(id=wait.job_ids[0], timeout=timeout, req_id=wait.req_id)
    queue = state.jobs[wait.job_ids[0]].queue
    return WaitJobs(queue=queue, ids=list(wait.job_ids), timeout=timeout, req_id=wait.req_id)
