"""The attempts of one step, until one succeeds or no more follow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Raw

from bunqueue.client.conversion.raised import is_a, is_final, made_final, text_of
from bunqueue.client.interrupts import is_cancelled, is_ctrl_c, runs
from bunqueue.client.models.workflows import Step
from bunqueue.client.options.job import encode_data
from bunqueue.client.options.moments import elapsed_ms
from bunqueue.errors import JobStopped, StepTimeout
from bunqueue.model.workflow import CANCELLED, COMPLETED, RETRYING, RUNNING, STEP, UNDO
from bunqueue.protocol.commands.workflows import StepRecord
from bunqueue.workflow import values
from bunqueue.workflow.context import StepRun, step_var
from bunqueue.workflow.exits import contained, raised
from bunqueue.workflow.outcomes import Unwind
from bunqueue.workflow.plans import Plan

if TYPE_CHECKING:
    from bunqueue.workflow.run import Run

logger = logging.getLogger("bunqueue.worker")

NOTED_AFTER = 1.0  # seconds after which a step is shown as running


class Attempts:
    """Made for each step that has to run."""

    def __init__(self, run: Run, name: str, plan: Plan, known: Step | None, kind: str = STEP) -> None:
        self._run = run
        self._name = name
        self._plan = plan
        self._kind = kind
        self._known = known
        self._recorded = known is not None  # whether the server knows the step
        self._number = _first(known)
        self._began = 0.0
        self._branch_cancelled = False  # its branch was cancelled, but the step has to finish anyway

    async def run(self) -> Any:
        """The result of the step. Raises StepFailed."""
        run, known = self._run, self._known
        await run.pause(self._name, run.pause_left(known))
        if self._plan.undo is not None and (known is None or known.status != RUNNING):
            await self._send(RUNNING)
        cursor = None if known is None else await self._cursor(known)
        task, what = asyncio.current_task(), f"the result of step {self._name!r}"
        while True:
            self._began = elapsed_ms()
            noted = run.loop.call_later(NOTED_AFTER, self._note)
            step = StepRun(self._name, run.key_of(self._name), self._number, cursor, self._save)
            try:
                value = await self._run_attempt(step)
                raw = values.stored(value, what)
                if self._kind == STEP:  # nobody reads the result of an undo
                    values.check_kept(value, self._plan.converting, what)
            except BaseException as error:
                if not self._is_its_own(error, task):
                    raise
                await self._failed(raised(error), step)
            else:
                return await self._completed(value, raw)
            finally:
                noted.cancel()
            cursor = step.cursor
            self._number += 1

    def _is_its_own(self, error: BaseException, task: asyncio.Task[Any] | None) -> bool:
        """Whether the error is a failure of the attempt. Otherwise it ends more than the step: its branch was
        cancelled, its run ends, the event loop is closed, or Ctrl-C was pressed.
        """
        if is_a(error, asyncio.CancelledError) and is_cancelled():
            if self._kind == UNDO and self._run.outcome is None:  # nobody else cancels an undo
                while task is not None and task.uncancel():
                    pass
                return True
            self._lost()
            return False
        if is_a(error, JobStopped, Unwind) or is_ctrl_c(error):  # JobStopped: the whole job is put off
            return False
        return type(error) is not GeneratorExit or runs(task)

    async def _cursor(self, known: Step) -> Any:
        """The cursor that an earlier attempt saved last."""
        if known.raw_cursor is UNSET and known.cursor_size:
            known = await self._run.whole(known.name, known.number)
        return known.cursor

    async def _run_attempt(self, step: StepRun) -> Any:
        """Run one attempt."""
        if self._plan.undo is None:
            return await self._timed(step)
        task = asyncio.get_running_loop().create_task(contained(self._timed(step)))
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                if task.cancelled() and not is_cancelled():  # by its own code
                    raise
                if self._run.outcome is not None:
                    task.cancel()
                    await asyncio.wait([task])
                    raise
                self._branch_cancelled = True  # a step that can be undone is not left half done
        return task.result()

    async def _timed(self, step: StepRun) -> Any:
        timeout, outer = self._plan.timeout, step_var.set(step)
        working, task = self._run.watch.working, asyncio.current_task()
        working.add(task)
        try:
            if timeout is None:
                return await self._run.call(self._plan, step)
            async with asyncio.timeout(timeout) as scope:
                return await self._run.call(self._plan, step)
        except TimeoutError as error:
            if timeout is not None and scope.expired():
                text = f"step {self._name!r} took longer than its timeout of {timeout * 1000:g} ms"
                self._timed_out(text, step)
                raise StepTimeout(text, queue=self._run.job.queue, job_id=self._run.job.id) from error
            raise
        finally:
            working.discard(task)
            step_var.reset(outer)

    def _timed_out(self, text: str, step: StepRun) -> None:
        """Log that it has taken too long."""
        job = self._run.job
        if self._run.calls_of(step):
            text += ". A thread cannot be ended: the next attempt begins when the function has returned"
        fields = {"event": "step_timed_out", "queue": job.queue, "job_id": job.id, "step": step.name}
        logger.warning("queue %r: job %s: %s", job.queue, job.id, text, extra={"fields": fields})

    # -- how an attempt ends

    async def _completed(self, value: Any, raw: Raw) -> Any:
        run, plan = self._run, self._plan
        await self._send(COMPLETED, result=raw)
        given = values.same_value(value, raw, plan.converting, self._name)
        if plan.undo is not None and self._known is not None and run.undoing:
            run.undos.append((self._known, plan.undo, given))
            run.saw(self._name)
        if self._branch_cancelled:
            raise asyncio.CancelledError
        return given

    async def _failed(self, error: BaseException, step: StepRun) -> None:
        """Returns when the next attempt may begin: not while a thread still runs this one."""
        run = self._run
        delay = None if self._branch_cancelled else self._plan.policy.next_delay(self._number, error)
        text = text_of(error)
        if delay is not None:
            await run.until_ended(step)
            await self._send(RETRYING, error=text, delay=delay)
            await run.pause(self._name, delay)
            return
        if self._branch_cancelled:
            self._lost()
            raise asyncio.CancelledError
        if run.final_status == RETRYING:
            await self._send(RETRYING, error=text, attempts=0)
        else:
            await self._send(run.final_status, error=text)
        if self._kind == STEP and run.undoing:
            run.saw(self._name)
        failure = run.step_failed(self._name, text, self._number)
        raise (made_final(failure) if is_final(error) else failure) from error

    def _lost(self) -> None:
        """Its branch was cancelled, by the code itself or because the run ends."""
        run = self._run
        if run.outcome is not None or run.job.ending is not None or run.final_status == RETRYING:
            return
        if not self._recorded:  # so that it can be recorded as cancelled
            self._run.pending.append(self._record(RUNNING))
        self._run.pending.append(self._record(CANCELLED))
        self._run.send_soon()

    # -- what is recorded about it

    def _note(self) -> None:
        """Record the step as running, because it takes a while."""
        if self._run.outcome is None:
            self._run.pending.append(self._record(RUNNING))
            self._recorded = True
            self._run.send_soon()

    def _save(self, cursor: Any) -> Awaitable[None]:
        raw = encode_data(cursor, f"the cursor of step {self._name!r}")
        return self._run.from_anywhere(lambda: self._store(raw))

    async def _store(self, raw: Raw) -> None:
        if self._run.outcome is not None:
            raise Unwind
        await self._send(RUNNING, cursor=raw)

    async def _send(self, status: str, **fields: Any) -> None:
        self._recorded = True
        await self._run.send(self._record(status, **fields))

    def _record(self, status: str, **fields: Any) -> StepRecord:
        given = {"attempts": self._number, **fields}
        return self._run.record(
            self._name,
            kind=self._kind,
            status=status,
            arguments=self._plan.arguments,
            took=elapsed_ms() - self._began if self._began else 0,
            undo=self._plan.undo is not None,
            **given,
        )


def _first(known: Step | None) -> int:
    """The number of the next attempt."""
    if known is None or known.status not in (RUNNING, RETRYING):
        return 1
    return known.attempts + 1 if known.status == RETRYING else max(1, known.attempts)
