"""Jobs that a command mentions, on whatever shard: which of them do not exist for its client.

They are those that a new job waits for, its parent, and jobs with an id that a client has chosen.
"""

from __future__ import annotations

from collections.abc import Iterable

from bunqueue.model.scope import Scope
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.server.links import peers as messages

from .. import peer_calls
from ..peer_calls import Steps
from ..registry import answers
from ..scoped import is_limited, queue_of_job
from ..state import Client, State
from .directory import flows_decided, locate


def hidden(state: State, client: Client, ids: Iterable[str | None]) -> Steps:
    """Those of these jobs that exist, but not for this client."""
    if client.scope is None or not is_limited(client):
        return frozenset[str]()
    found = yield from hidden_from(state, client.scope, filter(None, ids))
    return found


def hidden_from(state: State, scope: Scope, ids: Iterable[str]) -> Steps:
    """The same for a scope."""
    wanted = list(dict.fromkeys(ids))
    shard_of = yield from locate(state, wanted)
    groups = peer_calls.grouped(shard_of)
    found = yield [(shard, messages.Queues(some)) for shard, some in groups.items()]
    queues = {
        job_id: queue
        for some, answer in zip(groups.values(), found, strict=True)
        for job_id, queue in zip(some, answer.queues, strict=True)
    }
    return frozenset(job_id for job_id, queue in queues.items() if queue and not scope.allows(queue))


def check_own(state: State, client: Client, ids: Iterable[str]) -> Steps:
    """CommandError if a new job cannot have one of these ids, which clients choose: it would take the place
    of a job that does not exist for this client, or be answered with it."""
    if client.scope is None:
        return
    taken = frozenset(filter(client.scope.reserves, ids)) or (yield from hidden(state, client, ids))
    if taken:
        job_id = min(taken)
        raise CommandError(
            f"the id {job_id[:80]!r} cannot be used: give the job another one, or none",
            Code.FORBIDDEN,
            field="jobId",
            value=job_id,
        )


@answers(messages.Queues)
def queues(state: State, source: int, message: messages.Queues) -> Steps:
    yield from flows_decided(state, message.ids)
    return messages.QueuesAre([queue_of_job(state, job_id) or "" for job_id in message.ids])
