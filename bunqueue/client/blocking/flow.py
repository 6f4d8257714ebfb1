"""Made by scripts/unasync.py from client/flow.py; do not edit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, Unpack, cast

from msgspec import Raw, Struct

from bunqueue.client import flow_names, flow_plan
from bunqueue.client.blocking.base import Client
from bunqueue.client.codecs.envelope import check_opened
from bunqueue.client.connection.concurrent_calls import Gather
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.client.blocking.flow_graph import FlowBatch, FlowGraph
from bunqueue.client.flow_plan import FlowJob, FlowNode, FlowTree, Planned
from bunqueue.client.models.flows import ChildValuesReply, FlowPage, SomeFlows
from bunqueue.client.models.jobs import as_result, decode_job
from bunqueue.client.options import checks
from bunqueue.client.options.job import JobOptions, default_fields
from bunqueue.client.blocking.queue import JobHandle
from bunqueue.errors import JobNotFound, OptionError
from bunqueue.model.decoders import decoder
from bunqueue.protocol.commands import Reply, flows, query
from bunqueue.worker.active_job import current_job
from bunqueue.worker.middleware import Around, Middleware, around_adding

R = TypeVar("R")
T = TypeVar("T")


class _Added(Reply, kw_only=True):
    """The reply contains the jobs, but their ids are already known."""


class _Found(Reply, kw_only=True):
    job: Raw


class _Kin(Struct, rename="camel"):
    children_ids: list[str] = []


_kin = decoder(_Kin).decode


class FlowProducer(Client):
    """Adds flows: jobs of any queues that wait for each other. A flow is added as a whole or not at all.

        with FlowProducer() as flows:
            node = flows.add(
                FlowJob("report", {"month": "May"}, queue="reports").after(
                    FlowJob("fetch", {"source": "a"}, queue="fetches"),
                    FlowJob("fetch", {"source": "b"}, queue="fetches"),
                )
            )
            print(node.job.state())  # waiting, until both fetches have completed

    A parent reads the results of its children with `children_values`. The options are `EndpointOptions`,
    `default_job_options` for all jobs that do not override them, and `middleware`, which wraps the adding of
    each job.
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
        """Add a job and everything it waits for. The returned nodes have the shape of `flow`.

        Raises OptionError, PayloadError or CommandFailed; then nothing was added.
        """
        (node,) = self.add_bulk([flow])
        return cast(FlowNode[JobHandle[R]], node)

    def add_bulk(self, flows: Iterable[FlowJob[Any]]) -> list[FlowNode[JobHandle[Any]]]:
        """Add several flows at once: all of them, or none. At most 10,000 jobs."""
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
        """Add jobs that each wait for the one before, and read its result with `children_values`.

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

    def add_bulk_then(
        self, parallel: Iterable[FlowJob[Any]], final: FlowJob[R]
    ) -> FlowNode[JobHandle[R]]:
        """Add jobs that run in parallel, and one that waits for all of them.

        The node is that of `final`; its children are its own, then those of `parallel`.
        """
        return self.add(flow_plan.merged(parallel, final))

    # -- under Celery's names

    def group(self, jobs: Iterable[FlowJob[Any]]) -> list[JobHandle[Any]]:
        """Add jobs that run in parallel, all or none. Returns their handles. Same as `add_bulk`."""
        return [node.job for node in self.add_bulk(jobs)]

    def chain(self, *steps: FlowJob[Any]) -> JobHandle[Any]:
        """Add jobs that each wait for the one before. Returns the handle of the last one. Same as
        `add_chain`. Raises OptionError if there are no steps.
        """
        if not steps:
            raise OptionError("a chain needs at least one job")
        return (self.add_chain(steps))[-1]

    def chord(self, header: Iterable[FlowJob[Any]], body: FlowJob[R]) -> JobHandle[R]:
        """Add jobs that run in parallel, and `body`, which runs when all have completed and reads their
        results with `children_results`. Returns the handle of `body`. Same as `add_bulk_then`.
        """
        return (self.add_bulk_then(header, body)).job

    # -- with names

    def add_graph(
        self, jobs: Mapping[str, FlowJob[Any]], *, flow_id: str | None = None
    ) -> FlowGraph:
        """Add named jobs that form any graph without cycles, all of it or nothing.

            graph = flows.add_graph({
                "fetch": FlowJob("fetch", queue="fetches"),
                "left": FlowJob("half", {"n": 1}, queue="sums").after("fetch"),
                "right": FlowJob("half", {"n": 2}, queue="sums").after("fetch"),
                "total": FlowJob("total", queue="sums").after("left", "right"),
            }, flow_id="order-7")

        With a `flow_id` of your own, adding the same flow again is refused with the code FLOW_EXISTS. Raises
        OptionError, PayloadError or CommandFailed; then nothing was added.
        """
        graph = self.graph(flow_names.new_id() if flow_id is None else flow_id)
        graph.start(jobs)
        return graph

    def graph(self, flow_id: str) -> FlowGraph:
        """A flow that was added with `add_graph`, to show, grow, cancel or retry it."""
        return FlowGraph(self._caller, flow_id, self._defaults, self._around)

    def add_batch(
        self,
        *,
        on_complete: FlowJob[Any] | None = None,
        on_success: FlowJob[Any] | None = None,
        flow_id: str | None = None,
    ) -> FlowBatch:
        """Open a batch: a flow that grows until it is closed.

            with flows.add_batch(on_complete=FlowJob("summary", queue="mails")) as batch:
                batch.add_all(FlowJob("send", {"to": to}, queue="mails") for to in people)

        `on_complete` runs when all its jobs have ended, `on_success` when all have completed. If a job fails
        for good, `on_success` also fails.
        """
        batch = self.batch(flow_names.new_id() if flow_id is None else flow_id)
        batch.open(on_complete=on_complete, on_success=on_success)
        return batch

    def batch(self, flow_id: str) -> FlowBatch:
        """A batch that was added with `add_batch`, to add jobs to it (from one of its jobs, for example) or
        to close it.
        """
        return FlowBatch(self._caller, flow_id, self._defaults, self._around)

    def list_flows(
        self, *, prefix: str = "", queue: str | None = None, after: str | None = None, limit: int = 20
    ) -> FlowPage:
        """Flows with ids, in alphabetical order. Filters: ids that begin with `prefix`, flows with a job in
        `queue`. At most 100 at a time: pass the `cursor` of a page as `after` to get the next one. A page
        before the last one may have fewer than `limit` flows.
        """
        if queue is not None:
            checks.queue_name(queue)
        command = flows.ListFlows(prefix=prefix, queue=queue, after=after or "", limit=limit)
        return (self._caller.call(checks.checked(command), SomeFlows)).data

    # -- reading

    def get_flow(self, job_id: str, *, depth: int | None = None) -> FlowTree | None:
        """A job and all below it as they are now; None if the job does not exist.

        Children that were removed are left out. A job with several parents appears below each of them.
        `depth` limits how many levels are read, from 1 on.
        """
        root = self._read(job_id)
        level, left = [root] if root else [], depth
        met: dict[str, FlowTree | None] = {job_id: root[0] if root else None}
        while level and (left is None or left > 1):
            wanted = dict.fromkeys(child for _, children in level for child in children if child not in met)
            read = Gather.all([self._read(child) for child in wanted])
            met.update((child, each[0] if each else None) for child, each in zip(wanted, read, strict=True))
            for tree, children in level:  # a child with several parents appears below each of them
                tree.children = [found for child in children if (found := met[child])]
            level, left = [each for each in read if each], left and left - 1
        return root[0] if root else None

    def _read(self, job_id: str) -> tuple[FlowTree, list[str]] | None:
        """One job and the ids of its children."""
        try:
            reply = self._caller.call(query.GetJob(id=job_id), _Found)
        except JobNotFound:
            return None
        return FlowTree(decode_job(reply.job)), _kin(reply.job).children_ids

    # For handlers: what happened to the children. The default for `job_id` is that of `current_job()`.

    def children_values(self, job_id: str | None = None, *, partial: bool = False) -> dict[str, Any]:
        """The results of a job's children, by `queue:id`, in order. Children that did not complete are left
        out. Raises ResultError if a child completed but its result is no longer stored; with `partial` that
        child is left out instead.
        """
        parent = job_id or current_job().id
        reply = self._caller.call(flows.GetChildrenValues(id=parent), ChildValuesReply)
        values = reply.values(parent, partial=partial)
        for child, value in values.items():
            check_opened(value, f"the result of {child}")
        return values

    def children_results(self, kind: type[T], job_id: str | None = None) -> list[T]:
        """Like `children_values`, without the names, and each converted to `kind`. Raises ResultError."""
        values = self.children_values(job_id)
        return [as_result(value, kind, key.partition(":")[2]) for key, value in values.items()]

    def results(self, job_id: str | None = None) -> dict[str, Any]:
        """For a job of a named flow: the results of the jobs it waited for, by their names."""
        values = self.children_values(job_id)
        return {flow_names.name_of(key): value for key, value in values.items()}

    def result_of(self, name: str, kind: type[T], job_id: str | None = None) -> T:
        """The result of one of them, converted to `kind`; None stands for a job that has not completed.
        Raises ResultError.
        """
        found: T = as_result((self.results(job_id)).get(name), kind, name)
        return found

    def errors(self, job_id: str | None = None) -> dict[str, str]:
        """Like `failed_children`, by the names of a named flow."""
        failed = self.failed_children(job_id)
        return {flow_names.name_of(key): error for key, error in failed.items()}

    def failed_children(self, job_id: str | None = None) -> dict[str, str]:
        """The errors of children that failed but let the job run (`on_failure` "continue" or "ignore"), by
        `queue:id`.
        """
        parent = job_id or current_job().id
        failed = self._caller.call(flows.GetFailedChildrenValues(id=parent))
        command = flows.GetIgnoredChildrenFailures(id=parent)
        ignored = self._caller.call(command)
        return {**failed.values, **ignored.values}
