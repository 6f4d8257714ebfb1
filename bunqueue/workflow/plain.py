"""Steps of jobs that are not workflows: `job.step(...)`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from bunqueue.client.connection.options import Duration
from bunqueue.errors import WorkflowError
from bunqueue.model.workflow import RETRYING, STEP
from bunqueue.workflow import values
from bunqueue.workflow.attempts import Attempts
from bunqueue.workflow.plans import Plan, plan_of
from bunqueue.workflow.retry import RetryRule
from bunqueue.workflow.run import Run
from bunqueue.workflow.run_log import Claim, Conflict
from bunqueue.workflow.threads import Thread, thread_var

if TYPE_CHECKING:
    from bunqueue.worker.active_job import ActiveJob


class PlainSteps(Run):
    """The steps of a job. It waits in the process, and does not record failures: the next attempt tries
    again.
    """

    final_status = RETRYING

    def __init__(self, job: ActiveJob[Any]) -> None:
        super().__init__(job, _no_arguments)
        self._loading: asyncio.Future[None] | None = None

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        retry: RetryRule | None,
        time_limit: Duration | None,
    ) -> Any:
        """See `ActiveJob.step`."""
        plan = plan_of(function, args, kwargs, retry, time_limit, None)
        if self._loading is None:
            self._loading = asyncio.ensure_future(self.load())
        await self._loading
        self.check()
        return await self._step(self.claim(name, STEP, plan.arguments), plan)

    async def _step(self, claim: Claim | Conflict, plan: Plan) -> Any:
        if isinstance(claim, Conflict):
            raise self.changed(claim)
        known = claim.known
        if known is not None and not known.is_open:
            return values.value_of(await self.raw(known), plan.converting, known.name)
        return await Attempts(self, claim.name, plan, known).run()

    async def pause(self, name: str, ms: float) -> None:
        if ms > 0:
            await self.channel.pause(ms / 1000)

    def _idle(self) -> None:
        """Its run does not end to wait."""


def _no_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NoReturn:
    raise WorkflowError("this job is no workflow")


class StepsOfJob:
    """A job's steps: made with its first step, for coroutines and for threads."""

    def __init__(self, job: ActiveJob[Any]) -> None:
        self._job = job
        self._steps: PlainSteps | None = None

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        retry: RetryRule | None,
        timeout: Duration | None,
    ) -> Any:
        """A coroutine; in a thread without an event loop the result itself."""

        async def run() -> Any:
            return await (await self._made()).step(name, function, args, kwargs, retry, timeout)

        if _in_a_loop():
            return run()
        steps = asyncio.run_coroutine_threadsafe(self._made(), self._job.channel.loop).result()
        thread = thread_var.get()
        if thread is None or thread.owner is not steps:
            thread = Thread(steps)
        return thread.do(run)

    async def _made(self) -> PlainSteps:
        if self._steps is None:
            self._steps = PlainSteps(self._job)
        return self._steps


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
