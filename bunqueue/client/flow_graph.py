"""A flow whose jobs have names. `blocking/flow_graph.py` is made from it: `python scripts/unasync.py`."""

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
from bunqueue.client.worker.middleware import AsyncAround
from bunqueue.protocol.commands.flows import (
    AddFlow,
    CancelFlow,
    CloseFlow,
    FlowAddedReply,
    FlowNode,
    FlowRetriedReply,
    FlowStoppedReply,
    GetFlow,
    RetryFlow,
)


class AsyncFlowGraph:
    """A flow with an id, of jobs with names; `FlowProducer.add_graph` makes one."""

    def __init__(
        self, caller: AsyncCaller, flow_id: str, defaults: Mapping[str, Any], around: AsyncAround
    ) -> None:
        self._caller, self._defaults, self._around = caller, defaults, around
        self.id = flow_names.checked_name("flow_id", flow_id, "flow_id")
        self.jobs: dict[str, AsyncJobHandle[Any]] = {}
        """Handles of the jobs that this object has added, by their names."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    async def start(self, jobs: Mapping[str, FlowJob[Any]]) -> None:
        """Add the first jobs. Raises CommandFailed with the code FLOW_EXISTS when the flow has some."""
        await self._add(jobs, grow=False)

    async def add(self, jobs: Mapping[str, FlowJob[Any]]) -> None:
        """Add more jobs while the flow runs, or when it has ended: all of them or none. They may wait for
        each other, and by their names for jobs that are there. Raises NotFound when there is no such flow."""
        await self._add(jobs, grow=True)

    async def _add(self, jobs: Mapping[str, FlowJob[Any]], *, grow: bool) -> None:
        await self._send(jobs, flow_names.nodes(jobs, self._defaults), grow=grow)

    async def _send(self, jobs: Mapping[str, FlowJob[Any]], nodes: list[FlowNode], *, grow: bool) -> None:
        command = AddFlow(flow=self.id, nodes=nodes, grow=grow)

        async def send() -> None:
            await self._caller.call(command, FlowAddedReply)
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
        """Cancel all its jobs that have not ended; returns how many. Workers of those that run have `grace`
        to stop. The jobs stay, as dead letters, so the flow can be retried. Raises NotFound."""
        command = CancelFlow(flow=self.id, reason=storable(reason), grace=milliseconds(grace, "grace"))
        stopped = (await self._caller.call(checks.checked(command), FlowStoppedReply)).data
        return stopped.stopped + stopped.running

    async def retry(self, node: str | None = None) -> list[str]:
        """Run its dead jobs again, each when those that it waits for have completed; returns their names.
        With the name of a `node`, that job and all that follow it, those that have completed, too. Raises
        NotFound, JobNotFound, or WrongState when that job has not ended."""
        command = RetryFlow(flow=self.id, node=node)
        return (await self._caller.call(checks.checked(command), FlowRetriedReply)).data.names


class AsyncFlowBatch(AsyncFlowGraph):
    """A flow that grows until it is closed, and then runs a job when all of it has ended, and one when all
    has succeeded; `FlowProducer.add_batch` makes one.

    As a context manager it is closed at the end, unless an exception ended it.
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
        """Add it, with the jobs that run at its end, and its first `jobs` by their names. Raises
        CommandFailed with the code FLOW_EXISTS when there is one."""
        ends, nodes = flow_names.callbacks(on_complete, on_success, self._defaults)
        if jobs:
            nodes += flow_names.nodes(jobs, self._defaults)
        await self._send({**ends, **(jobs or {})}, nodes, grow=False)

    async def add_all(self, jobs: Iterable[FlowJob[Any]]) -> list[AsyncJobHandle[Any]]:
        """Add jobs whose names do not matter; returns their handles in order. Raises CommandFailed with the
        code FLOW_CLOSED when the batch was closed."""
        named = flow_names.numbered(jobs)
        if named:
            await self.add(named)
        return [self.jobs[name] for name in named]

    async def close(self) -> int:
        """Take no more jobs; returns how many there are. May be called again. Raises NotFound."""
        return len((await self._caller.call(CloseFlow(flow=self.id), FlowAddedReply)).data.ids)
