"""Made by scripts/unasync.py from client/flow_graph.py; do not edit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from bunqueue.client import flow_names
from bunqueue.client.connection.caller import Caller
from bunqueue.client.connection.options import Duration, milliseconds
from bunqueue.client.conversion.words import storable
from bunqueue.client.flow_plan import FlowJob
from bunqueue.client.models.flows import FlowInfo, OneFlow
from bunqueue.client.options import checks
from bunqueue.client.blocking.queue import JobHandle
from bunqueue.protocol.commands.flows import (
    AddFlow,
    CancelFlow,
    CloseFlow,
    FlowNode,
    GetFlow,
    RetryFlow,
)
from bunqueue.worker.middleware import Around


class FlowGraph:
    """A flow with an id and named jobs. Created by `FlowProducer.add_graph`."""

    def __init__(
        self, caller: Caller, flow_id: str, defaults: Mapping[str, Any], around: Around
    ) -> None:
        self._caller, self._defaults, self._around = caller, defaults, around
        self.id = flow_names.checked_name("flow_id", flow_id, "flow_id")
        self.jobs: dict[str, JobHandle[Any]] = {}
        """Handles of the jobs that this object has added, by name."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    def start(self, jobs: Mapping[str, FlowJob[Any]]) -> None:
        """Add the first jobs. Raises CommandFailed with the code FLOW_EXISTS if the flow already exists."""
        self._add(jobs, grow=False)

    def add(self, jobs: Mapping[str, FlowJob[Any]]) -> None:
        """Add more jobs, all or none, while the flow runs or after it has ended. They may wait for each
        other, and by name for jobs that are already in the flow. Raises NotFound if the flow does not exist.
        """
        self._add(jobs, grow=True)

    def _add(self, jobs: Mapping[str, FlowJob[Any]], *, grow: bool) -> None:
        self._send(jobs, flow_names.nodes(jobs, self._defaults), grow=grow)

    def _send(self, jobs: Mapping[str, FlowJob[Any]], nodes: list[FlowNode], *, grow: bool) -> None:
        command = AddFlow(flow=self.id, nodes=nodes, grow=grow)

        def send() -> None:
            self._caller.call(command)
            for name, job in jobs.items():
                job.id = flow_names.id_of(self.id, name)

        self._around.add(list(jobs.values()), send)
        for name, job in jobs.items():
            job_id = flow_names.id_of(self.id, name)
            self.jobs[name] = JobHandle(self._caller, job.queue, job_id, job.result_type)

    def info(self) -> FlowInfo:
        """All its jobs as they are now: states, errors, and what each waits for. Raises NotFound."""
        return (self._caller.call(GetFlow(flow=self.id), OneFlow)).data

    def cancel(self, reason: str | None = None, *, grace: Duration = 10_000) -> int:
        """Cancel all jobs that have not ended; returns their number. Workers of running jobs have `grace` to
        stop. The jobs stay as dead letters, so the flow can be retried. Raises NotFound.
        """
        command = CancelFlow(flow=self.id, reason=storable(reason), grace=milliseconds(grace, "grace"))
        stopped = (self._caller.call(checks.checked(command))).data
        return stopped.stopped + stopped.running

    def retry(self, node: str | None = None) -> list[str]:
        """Run its dead jobs again, each once those that it waits for have completed; returns their names.
        With the name of a `node`: run that job and all that follow it, even those that have completed. Raises
        NotFound, JobNotFound, or WrongState if that job has not ended.
        """
        command = RetryFlow(flow=self.id, node=node)
        return (self._caller.call(checks.checked(command))).data.names


class FlowBatch(FlowGraph):
    """A flow that grows until it is closed. Then it runs one job when all its jobs have ended, and another
    when all have succeeded. Created by `FlowProducer.add_batch`.

    As a context manager it is closed at the end, unless an exception was raised.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()

    def open(
        self,
        *,
        on_complete: FlowJob[Any] | None = None,
        on_success: FlowJob[Any] | None = None,
        jobs: Mapping[str, FlowJob[Any]] | None = None,
    ) -> None:
        """Add it, with the jobs that run at its end, and its first `jobs` by name. Raises CommandFailed with
        the code FLOW_EXISTS if it already exists.
        """
        ends, nodes = flow_names.callbacks(on_complete, on_success, self._defaults)
        if jobs:
            nodes += flow_names.nodes(jobs, self._defaults)
        self._send({**ends, **(jobs or {})}, nodes, grow=False)

    def add_all(self, jobs: Iterable[FlowJob[Any]]) -> list[JobHandle[Any]]:
        """Add jobs whose names do not matter; returns their handles in order. Raises CommandFailed with the
        code FLOW_CLOSED if the batch is closed.
        """
        named = flow_names.numbered(jobs)
        if named:
            self.add(named)
        return [self.jobs[name] for name in named]

    def close(self) -> int:
        """Stop accepting jobs; returns the number of jobs. May be called again. Raises NotFound."""
        return len((self._caller.call(CloseFlow(flow=self.id))).data.ids)
