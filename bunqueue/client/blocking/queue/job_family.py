"""Made by scripts/unasync.py from client/queue/job_family.py; do not edit."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Struct

from bunqueue.client.blocking.queue.job_base import JobBase
from bunqueue.client.options.job import job_id
from bunqueue.client.options.types import JobRef
from bunqueue.protocol.commands import Ok, Reply, flows

R = TypeVar("R")


class _Values(Struct):
    values: dict[str, Any]


class _ValuesReply(Reply, kw_only=True):
    data: _Values


class JobFamily(JobBase[R]):
    """The part of a job's handle that is about other jobs."""

    __slots__ = ()

    def children_values(self) -> dict[str, Any]:
        """What its children gave back, by "queue:id"; those that have not completed are left out."""
        reply = self._ask(flows.GetChildrenValues(id=self.id), _ValuesReply)
        return reply.data.values

    def failed_children(self) -> dict[str, str]:
        """The errors of children that failed and let it run all the same, by "queue:id": those with the
        policies "continue" and "ignore"."""
        reply = self._ask(flows.GetFailedChildrenValues(id=self.id), flows.ChildErrorsReply)
        return {**reply.values, **self.ignored_children()}

    def ignored_children(self) -> dict[str, str]:
        """Of `failed_children` those whose failure did not let it run at once: the policy "ignore"."""
        reply = self._ask(flows.GetIgnoredChildrenFailures(id=self.id), flows.ChildErrorsReply)
        return reply.values

    def set_parent(self, parent: JobRef) -> None:
        """Make it the child of another job, which waits for it from then on. Raises JobNotFound."""
        command = flows.UpdateParent(child_id=self.id, parent_id=job_id(parent, "parent"))
        self._ask(command, Ok)

    def leave_parent(self) -> None:
        """Part it from its parent, which no longer waits for it. CommandFailed when it has none."""
        self._ask(flows.RemoveChildDependency(id=self.id), flows.RemovedReply)

    def remove_children(self) -> None:
        """Remove its children that have not begun."""
        self._ask(flows.RemoveUnprocessedChildren(id=self.id), Ok)
