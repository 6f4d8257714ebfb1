"""A server as a whole, or an embedded engine: figures, queues, workers, schedules, webhooks, jobs by id.

What is about one queue belongs to `client/queue`. `blocking/admin.py` is made from this file by
`scripts/unasync.py`.
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
from bunqueue.protocol.commands import breakers, keys, query
from bunqueue.protocol.commands.breakers import BreakerView
from bunqueue.protocol.commands.cron import CronView
from bunqueue.protocol.commands.keys import KeyUse
from bunqueue.protocol.commands.webhooks import WebhookInfo
from bunqueue.protocol.commands.workflows import Broadcast


class AsyncAdmin(AsyncClient, AsyncServerCalls, AsyncNamedCrons, AsyncServerWebhooks, AsyncSearch):
    """What can be asked and done without naming a queue.

        async with AsyncAdmin() as admin:
            for queue in await admin.list_queues():
                print(queue.name, queue.waiting)

    Where the server is, see `EndpointOptions`. Every method raises BunqueueError; one that changes something
    and raises ConnectionLost or CommandTimeout may have changed it.
    """

    async def list_crons(self, queue: str | None = None) -> list[CronView]:
        """The schedules of all queues, or of one, by name; without the data of their jobs."""
        return await self._crons(queue)

    async def list_breakers(self) -> list[BreakerView]:
        """The circuit breakers of all queues, and whether they are open."""
        return (await self._caller.call(breakers.ListBreakers(), breakers.BreakersReply)).breakers

    async def list_keys(self) -> list[KeyUse]:
        """Which keys of encryption the payloads need that the server stores, by the names that `Encryption`
        has given them: for each key, kind and queue how many, and an example. Keys that are not in it can be
        left out. The server reads everything for that, which takes a while."""
        found: dict[tuple[str, str, str], KeyUse] = {}
        for use in (await self._caller.call(keys.ListKeys(), keys.KeysReply)).keys:
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

        What is sent is signed with the `secret`. Raises CommandFailed for an address inside the network.
        """
        return await self._add(url, events, secret, queue)

    async def list_webhooks(self, queue: str | None = None) -> list[WebhookInfo]:
        """All webhooks, or those that get the events of a queue, in the order in which they were added."""
        return await self._webhooks(queue)

    async def get_job(self, job_id: str) -> Job | None:
        """A job of any queue; None if it does not exist."""
        command = checks.checked(query.GetJob(id=job_id), id="job_id")
        try:
            return await whole_job(self._caller, command)
        except JobNotFound:
            return None

    async def get_state(self, job_id: str) -> str:
        """The state of a job; unknown when there is no such job."""
        command = checks.checked(query.GetState(id=job_id), id="job_id")
        return (await self._caller.call(command, query.StateReply)).state

    async def broadcast(
        self,
        name: str,
        key: str,
        data: object = None,
        *,
        keep: Duration | None = None,
        broadcast_id: str | None = None,
    ) -> int:
        """Send a signal to every workflow of any queue that waits for this name and key; how many took it.

        For a day, or for `keep`, workflows that wait for it later get it, too, each once. With the same
        `broadcast_id` it may be sent again, and counts once.
        """
        command = Broadcast(
            name=name,
            key=key,
            data=encode_data(data, f"the data of signal {name!r}"),
            keep=None if keep is None else milliseconds(keep, "keep"),
            broadcast_id=broadcast_id or str(uuid.uuid4()),  # so that the client may repeat it
        )
        return (await self._caller.call(checks.checked(command), query.CountReply)).count

    async def find_workflow(self, job_id: str) -> AsyncWorkflowHandle[Any]:
        """As `find_job`, for a workflow."""
        found = await self.find_job(job_id)
        return AsyncWorkflowHandle(self._caller, found.queue, found.id)

    async def find_job(self, job_id: str) -> AsyncJobHandle[Any]:
        """The handle of a job; the server is asked for its queue. Raises JobNotFound."""
        command = checks.checked(query.GetJob(id=job_id), id="job_id")
        job = (await self._caller.call(command, replies.OneJob)).job
        return AsyncJobHandle(self._caller, job.queue, job.id)
