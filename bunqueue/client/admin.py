"""A whole server, or an embedded engine: figures, queues, workers, schedules, webhooks, jobs by id.

Calls about a single queue are in `client/queue`. `scripts/unasync.py` generates `blocking/admin.py` from this
file.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from bunqueue.client.base import AsyncClient
from bunqueue.client.connection.options import Duration, milliseconds
from bunqueue.client.models import jobs as replies
from bunqueue.client.models.jobs import Job
from bunqueue.client.options import checks
from bunqueue.client.options.job import encode_data
from bunqueue.client.queue.crons import AsyncNamedCrons
from bunqueue.client.queue.handle import AsyncJobHandle
from bunqueue.client.queue.search import AsyncSearch
from bunqueue.client.queue.webhooks import AsyncServerWebhooks, WebhookEvent
from bunqueue.client.queue.whole_job import whole_job
from bunqueue.client.queue.workflow import AsyncWorkflowHandle
from bunqueue.client.server_calls import AsyncServerCalls
from bunqueue.errors import JobNotFound
from bunqueue.protocol.commands import breakers, error_groups, functions, keys, query
from bunqueue.protocol.commands.breakers import BreakerView
from bunqueue.protocol.commands.cron import CronView
from bunqueue.protocol.commands.error_groups import ErrorGroupView
from bunqueue.protocol.commands.functions import FunctionView
from bunqueue.protocol.commands.keys import KeyUse
from bunqueue.protocol.commands.webhooks import WebhookInfo
from bunqueue.protocol.commands.workflows import Broadcast


class AsyncAdmin(AsyncClient, AsyncServerCalls, AsyncNamedCrons, AsyncServerWebhooks, AsyncSearch):
    """Queries and commands that need no queue name.

        async with AsyncAdmin() as admin:
            for queue in await admin.list_queues():
                print(queue.name, queue.waiting)

    For the server's address see `EndpointOptions`. Every method raises BunqueueError. If one that changes
    something raises ConnectionLost or CommandTimeout, the change may have happened.
    """

    async def list_crons(self, queue: str | None = None) -> list[CronView]:
        """The schedules of all queues, or of one, by name, without the data of their jobs."""
        return await self._crons(queue)

    async def list_breakers(self) -> list[BreakerView]:
        """The circuit breakers of all queues, and whether they are open."""
        return (await self._caller.call(breakers.ListBreakers())).breakers

    async def error_groups(self, *, limit: int = 100) -> list[ErrorGroupView]:
        """The groups of errors of all queues, as in `Queue.error_groups`; at most `limit` of each shard."""
        command = checks.checked(error_groups.ListErrors(limit=limit))
        found = (await self._caller.call(command)).data.groups
        return sorted(found, key=lambda group: (-group.kept, -group.failures, group.queue))

    async def functions(self) -> list[FunctionView]:
        """The functions that apps have declared for all queues, as in `Queue.functions`."""
        found = (await self._caller.call(functions.ListFunctions())).functions
        return sorted(found, key=lambda function: (function.queue, function.name))

    async def list_keys(self) -> list[KeyUse]:
        """The encryption keys that stored payloads need, by their names in `Encryption`: for each key, kind
        and queue a count and an example. Keys that are not listed can be dropped. The server reads all
        payloads for this, which takes a while.
        """
        found: dict[tuple[str, str, str], KeyUse] = {}
        for use in (await self._caller.call(keys.ListKeys())).keys:
            known = found.setdefault((use.key, use.queue or "", use.what), use)
            if known is not use:
                known.count += use.count
        return [found[place] for place in sorted(found)]

    async def add_webhook(
        self,
        url: str,
        events: Iterable[WebhookEvent],
        *,
        secret: str | None = None,
        queue: str | None = None,
    ) -> str:
        """Have events of all queues, or of one, sent to a URL. Returns the id of the webhook.

        Requests are signed with the `secret`. Raises CommandFailed for an address inside the network.
        """
        return await self._add(url, events, secret, queue)

    async def list_webhooks(self, queue: str | None = None) -> list[WebhookInfo]:
        """All webhooks, or those that get the events of a queue, oldest first."""
        return await self._webhooks(queue)

    async def get_job(self, job_id: str) -> Job | None:
        """A job of any queue; None if it does not exist."""
        command = checks.checked(query.GetJob(id=job_id), id="job_id")
        try:
            return await whole_job(self._caller, command)
        except JobNotFound:
            return None

    async def get_state(self, job_id: str) -> str:
        """The state of a job; "unknown" if it does not exist."""
        command = checks.checked(query.GetState(id=job_id), id="job_id")
        return (await self._caller.call(command)).state

    async def broadcast(
        self,
        name: str,
        key: str,
        data: object = None,
        *,
        keep: Duration | None = None,
        broadcast_id: str | None = None,
    ) -> int:
        """Send a signal to every workflow of any queue that waits for this name and key. Returns how many
        took it.

        For a day, or for `keep`, workflows that start to wait for it later also get it, once each. Sending it
        again with the same `broadcast_id` counts once.
        """
        command = Broadcast(
            name=name,
            key=key,
            data=encode_data(data, f"the data of signal {name!r}"),
            keep=None if keep is None else milliseconds(keep, "keep"),
            broadcast_id=broadcast_id or str(uuid.uuid4()),  # makes it safe for the client to repeat
        )
        return (await self._caller.call(checks.checked(command))).count

    async def find_workflow(self, job_id: str) -> AsyncWorkflowHandle[Any]:
        """Like `find_job`, for a workflow."""
        found = await self.find_job(job_id)
        return AsyncWorkflowHandle(self._caller, found.queue, found.id)

    async def find_job(self, job_id: str) -> AsyncJobHandle[Any]:
        """The handle of a job, whose queue the server looks up. Raises JobNotFound."""
        command = checks.checked(query.GetJob(id=job_id), id="job_id")
        job = (await self._caller.call(command, replies.OneJob)).job
        return AsyncJobHandle(self._caller, job.queue, job.id)
