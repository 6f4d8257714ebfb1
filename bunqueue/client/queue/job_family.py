"""A job among its parents and children. Flows are added by `FlowProducer`."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Struct

from bunqueue.client.options.job import job_id
from bunqueue.client.options.types import JobRef
from bunqueue.client.queue.job_base import AsyncJobBase
from bunqueue.protocol.commands import Ok, Reply, flows

R = TypeVar("R")


class _Values(Struct):
    values: dict[str, Any]


class _ValuesReply(Reply, kw_only=True):
    data: _Values


class AsyncJobFamily(AsyncJobBase[R]):
    """The part of a job's handle that is about other jobs."""

    __slots__ = ()

    async def children_values(self) -> dict[str, Any]:
        """What its children gave back, by "queue:id"; those that have not completed are left out."""
        reply = await self._ask(flows.GetChildrenValues(id=self.id), _ValuesReply)
        return reply.data.values

    async def failed_children(self) -> dict[str, str]:
        """The errors of children that failed and let it run all the same, by "queue:id": those with the
        policies "continue" and "ignore"."""
        reply = await self._ask(flows.GetFailedChildrenValues(id=self.id), flows.ChildErrorsReply)
        return {**reply.values, **await self.ignored_children()}

    async def ignored_children(self) -> dict[str, str]:
        """Of `failed_children` those whose failure did not let it run at once: the policy "ignore"."""
        reply = await self._ask(flows.GetIgnoredChildrenFailures(id=self.id), flows.ChildErrorsReply)
        return reply.values

    async def set_parent(self, parent: JobRef) -> None:
        """Make it the child of another job, which waits for it from then on. Raises JobNotFound."""
        command = flows.UpdateParent(child_id=self.id, parent_id=job_id(parent, "parent"))
        await self._ask(command, Ok)

    async def leave_parent(self) -> None:
        """Part it from its parent, which no longer waits for it. CommandFailed when it has none."""
        await self._ask(flows.RemoveChildDependency(id=self.id), flows.RemovedReply)

    async def remove_children(self) -> None:
        """Remove its children that have not begun."""
        await self._ask(flows.RemoveUnprocessedChildren(id=self.id), Ok)
