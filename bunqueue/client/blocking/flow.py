"""Made by scripts/unasync.py from client/flow.py; do not edit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, Unpack, cast

from msgspec import Raw, Struct
from msgspec.msgpack import Decoder

from bunqueue.client import flow_plan
from bunqueue.client.blocking.base import Client
from bunqueue.client.blocking.queue import JobHandle
from bunqueue.client.codecs.envelope import check_opened
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.client.connection.gather import Gather
from bunqueue.client.flow_plan import FlowJob, FlowNode, FlowTree, Planned
from bunqueue.client.models.jobs import as_result, decode_job
from bunqueue.client.options.job import JobOptions, default_fields
from bunqueue.client.worker.active_job import current_job
from bunqueue.client.worker.middleware import Around, Middleware, around_adding
from bunqueue.errors import JobNotFound
from bunqueue.protocol.commands import Reply, flows, query

R = TypeVar("R")
T = TypeVar("T")


class _Added(Reply, kw_only=True):
    """The jobs come back, but their ids are known."""


class _Found(Reply, kw_only=True):
    job: Raw


class _Kin(Struct, rename="camel"):
    children_ids: list[str] = []


class _Values(Struct):
    values: dict[str, Any]


class _ValuesReply(Reply, kw_only=True):
    data: _Values


_kin = Decoder(_Kin).decode


class FlowProducer(Client):
    """Adds flows: jobs of any queues that wait for each other, all of them in one go or none.

        with FlowProducer() as flows:
            node = flows.add(
                FlowJob("report", {"month": "May"}, queue="reports").after(
                    FlowJob("fetch", {"source": "a"}, queue="fetches"),
                    FlowJob("fetch", {"source": "b"}, queue="fetches"),
                )
            )
            print(node.job.state())  # waiting, until both fetches have completed

    A parent finds what its children gave back with `children_values`. The options are `EndpointOptions`,
    `default_job_options` for all jobs that do not say otherwise, and `middleware`, which is around the adding
    of each.
    """

    def __init__(
        self,
        *,
        default_job_options: JobOptions | None = None,
        middleware: Iterable[Middleware] = (),
        **endpoint: Unpack[EndpointOptions],
    ) -> None:
        super().__init__(**endpoint)
        self._defaults: Mapping[str, Any] = default_fields(default_job_options)
        self._around = Around(around_adding(middleware))

    # -- adding

    def add(self, flow: FlowJob[R]) -> FlowNode[JobHandle[R]]:
        """Add a job with all that it waits for; the nodes of the answer have the shape of `flow`.

        Raises OptionError, PayloadError or CommandFailed, and then nothing was added.
        """
        (node,) = self.add_bulk([flow])
        return cast(FlowNode[JobHandle[R]], node)

    def add_bulk(self, flows: Iterable[FlowJob[Any]]) -> list[FlowNode[JobHandle[Any]]]:
        """Add several flows in one go: all of them, or none. At most 10,000 jobs."""
        planned = flow_plan.plan(flows)
        if not planned:
            return []

        def send() -> None:
            self._caller.call(flow_plan.push_flow(planned, self._defaults), _Added)
            for each in planned:
                each.job.id = each.id

        self._around.add([each.job for each in planned], send)
        return flow_plan.nodes(planned, self._handle)

    def _handle(self, planned: Planned) -> JobHandle[Any]:
        return JobHandle(self._caller, planned.job.queue, planned.id, planned.job.result_type)

    def add_chain(self, steps: Iterable[FlowJob[Any]]) -> list[JobHandle[Any]]:
        """Add jobs of which each waits for the one before, and finds its result in `children_values`.

        The handles come in the order of the steps.
        """
        linked = flow_plan.chain(steps)
        if not linked:
            return []
        node: FlowNode[JobHandle[Any]] = self.add(linked[-1])
        handles = [node.job]
        for _ in linked[1:]:
            node = node.children[-1]  # behind children of its own
            handles.append(node.job)
        return handles[::-1]

    def add_bulk_then(self, parallel: Iterable[FlowJob[Any]], final: FlowJob[R]) -> FlowNode[JobHandle[R]]:
        """Add jobs that run side by side, and one that waits for all of them.

        The node is that of `final`, its children those of `parallel`, behind children of its own.
        """
        return self.add(flow_plan.merged(parallel, final))

    # -- looking

    def get_flow(self, job_id: str, *, depth: int | None = None) -> FlowTree | None:
        """A job and all below it as they are now; None when there is no such job.

        Children that were removed are left out. With `depth` only so many levels are read, from 1 on.
        """
        root = self._read(job_id)
        level, seen, left = [root] if root else [], {job_id}, depth
        while level and (left is None or left > 1):
            wanted = dict.fromkeys(child for _, children in level for child in children if child not in seen)
            seen.update(wanted)  # somebody may have made a ring of them
            read = Gather.all([self._read(child) for child in wanted])
            found = dict(zip(wanted, read, strict=True))
            below = []
            for tree, children in level:
                mine = [each for child in children if (each := found.pop(child, None))]
                tree.children = [each[0] for each in mine]
                below += mine
            level, left = below, left and left - 1
        return root[0] if root else None

    def _read(self, job_id: str) -> tuple[FlowTree, list[str]] | None:
        """One job and the ids of its children."""
        try:
            reply = self._caller.call(query.GetJob(id=job_id), _Found)
        except JobNotFound:
            return None
        return FlowTree(decode_job(reply.job)), _kin(reply.job).children_ids

    # In handlers: what became of the children. Without `job_id` it is those of `current_job()`.

    def children_values(self, job_id: str | None = None) -> dict[str, Any]:
        """What the children of a job gave back, by `queue:id`, in their order; those that did not complete
        are left out."""
        command = flows.GetChildrenValues(id=job_id or current_job().id)
        reply = self._caller.call(command, _ValuesReply)
        for child, value in reply.data.values.items():
            check_opened(value, f"the result of {child}")
        return reply.data.values

    def children_results(self, kind: type[T], job_id: str | None = None) -> list[T]:
        """As `children_values`, without the names, and each converted to `kind`. Raises ResultError."""
        values = self.children_values(job_id)
        return [as_result(value, kind, key.partition(":")[2]) for key, value in values.items()]

    def failed_children(self, job_id: str | None = None) -> dict[str, str]:
        """The errors of children that failed and let the job run all the same, by `queue:id`: those with
        `on_failure` "continue" and "ignore"."""
        parent = job_id or current_job().id
        failed = self._caller.call(flows.GetFailedChildrenValues(id=parent), flows.ChildErrorsReply)
        command = flows.GetIgnoredChildrenFailures(id=parent)
        ignored = self._caller.call(command, flows.ChildErrorsReply)
        return {**failed.values, **ignored.values}
