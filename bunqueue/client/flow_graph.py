"""A flow of named jobs. `scripts/unasync.py` generates `blocking/flow_graph.py` from this file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from bunqueue.client import flow_names
from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.connection.options import Duration, milliseconds
from bunqueue.client.conversion.words import storable
from bunqueue.client.flow_plan import FlowJob
from bunqueue.client.models.flows import FlowInfo, OneFlow
from bunqueue.client.options import checks
from bunqueue.client.queue import AsyncJobHandle
from bunqueue.protocol.commands.flows import (
    AddFlow,
    CancelFlow,
    CloseFlow,
    FlowNode,
    GetFlow,
    RetryFlow,
)
from bunqueue.worker.middleware import AsyncAround


class AsyncFlowGraph:
    """A flow with an id and named jobs. Created by `FlowProducer.add_graph`."""

    def __init__(
        self, caller: AsyncCaller, flow_id: str, defaults: Mapping[str, Any], around: AsyncAround
    ) -> None:
        self._caller, self._defaults, self._around = caller, defaults, around
        self.id = flow_names.checked_name("flow_id", flow_id, "flow_id")
        self.jobs: dict[str, AsyncJobHandle[Any]] = {}
        """Handles of the jobs that this object has added, by name."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    async def start(self, jobs: Mapping[str, FlowJob[Any]]) -> None:
        """Add the first jobs. Raises CommandFailed with the code FLOW_EXISTS if the flow already exists."""
        await self._add(jobs, grow=False)

    async def add(self, jobs: Mapping[str, FlowJob[Any]]) -> None:
        """Add more jobs, all or none, while the flow runs or after it has ended. They may wait for each
        other, and by name for jobs that are already in the flow. Raises NotFound if the flow does not exist.
        """
        await self._add(jobs, grow=True)

    async def _add(self, jobs: Mapping[str, FlowJob[Any]], *, grow: bool) -> None:
        await self._send(jobs, flow_names.nodes(jobs, self._defaults), grow=grow)

    async def _send(self, jobs: Mapping[str, FlowJob[Any]], nodes: list[FlowNode], *, grow: bool) -> None:
        command = AddFlow(flow=self.id, nodes=nodes, grow=grow)

        async def send() -> None:
            await self._caller.call(command)
            for name, job in jobs.items():
                job.id = flow_names.id_of(self.id, name)

        await self._around.add(list(jobs.values()), send)
        for name, job in jobs.items():
            job_id = flow_names.id_of(self.id, name)
            self.jobs[name] = AsyncJobHandle(self._caller, job.queue, job_id, job.result_type)

    async def info(self) -> FlowInfo:
        """All its jobs as they are now: states, errors, and what each waits for. Raises NotFound."""
        return (await self._caller.call(GetFlow(flow=self.id), OneFlow)).data

    async def cancel(self, reason: str | None = None, *, grace: Duration = 10_000) -> int:
        """Cancel all jobs that have not ended; returns their number. Workers of running jobs have `grace` to
        stop. The jobs stay as dead letters, so the flow can be retried. Raises NotFound.
        """
        command = CancelFlow(flow=self.id, reason=storable(reason), grace=milliseconds(grace, "grace"))
        stopped = (await self._caller.call(checks.checked(command))).data
        return stopped.stopped + stopped.running

    async def retry(self, node: str | None = None) -> list[str]:
        """Run its dead jobs again, each once those that it waits for have completed; returns their names.
        With the name of a `node`: run that job and all that follow it, even those that have completed. Raises
        NotFound, JobNotFound, or WrongState if that job has not ended.
        """
        command = RetryFlow(flow=self.id, node=node)
        return (await self._caller.call(checks.checked(command))).data.names


class AsyncFlowBatch(AsyncFlowGraph):
    """A flow that grows until it is closed. Then it runs one job when all its jobs have ended, and another
    when all have succeeded. Created by `FlowProducer.add_batch`.

    As a context manager it is closed at the end, unless an exception was raised.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.close()

    async def open(
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
        await self._send({**ends, **(jobs or {})}, nodes, grow=False)

    async def add_all(self, jobs: Iterable[FlowJob[Any]]) -> list[AsyncJobHandle[Any]]:
        """Add jobs whose names do not matter; returns their handles in order. Raises CommandFailed with the
        code FLOW_CLOSED if the batch is closed.
        """
        named = flow_names.numbered(jobs)
        if named:
            await self.add(named)
        return [self.jobs[name] for name in named]

    async def close(self) -> int:
        """Stop accepting jobs; returns the number of jobs. May be called again. Raises NotFound."""
        return len((await self._caller.call(CloseFlow(flow=self.id))).data.ids)
