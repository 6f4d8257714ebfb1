"""One run of a workflow, from its beginning to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, NoReturn

from bunqueue.client.conversion.raised import is_a
from bunqueue.client.interrupts import is_ctrl_c, runs
from bunqueue.errors import StepFailed
from bunqueue.model.workflow import COMPLETED, SKIPPED, UNDO, UNDO_MARK
from bunqueue.workflow import idle
from bunqueue.workflow.attempts import Attempts
from bunqueue.workflow.context import run_var
from bunqueue.workflow.exits import contained, result_of
from bunqueue.workflow.outcomes import UndoFailed, Undone, Unwind
from bunqueue.workflow.plans import undo_plan
from bunqueue.workflow.run import Replayed, Run

TURNS = 20  # of the event loop, for branches to unwind before they are cancelled


async def drive(run: Run, body: Callable[[], Awaitable[Any]]) -> Any:
    """The result of a workflow's function. Raises its exception, or what else ends the run: JobSuspended,
    JobInterrupted, Unrecoverable after an undo, BunqueueError if the job was lost.
    """
    idle.install(run.loop)
    run.job.is_workflow = True
    try:
        await run.load()
        if run.undoing:
            await _undo(run, body)
        value = await _run(run, body)
        await run.send()  # pending records
        return value
    except Unwind:
        raise _outcome(run) from None
    except BaseException as error:
        if run.outcome is None and not run.undoing and (records := run.reopened(error)):
            await _reopen(run, records)
        raise
    finally:
        run.stop(Unwind())
        run.job.woken = None


async def _reopen(run: Run, records: list[Any]) -> None:
    try:
        await run.send(*records)
    except Unwind:
        raise _outcome(run) from None


def _outcome(run: Run) -> BaseException:
    """How an unwound run has ended; without a reason, its own code has cancelled it."""
    return asyncio.CancelledError() if run.outcome is None else run.outcome


async def _run(run: Run, body: Callable[[], Awaitable[Any]]) -> Any:
    """Raises Unwind unless the run ends with its function."""
    context = copy_context()
    context.run(run_var.set, run)
    main = run.watch.main = run.loop.create_task(contained(_awaited(body)), context=context)
    try:
        await asyncio.wait([main, run.ended], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:  # the job is cancelled, or has to go back
        run.stop(Unwind())
        await _end_tasks(run)
        raise
    if run.outcome is not None:
        await _unwind(run)
        if main.done() and not main.cancelled():
            main.exception()  # it only shows how the branch was unwound
        raise Unwind
    await _end_tasks(run)  # tasks left behind by the function
    return result_of(main)


async def _awaited(body: Callable[[], Awaitable[Any]]) -> Any:
    return await body()


async def _unwind(run: Run) -> None:
    """Wait for the tasks to unwind: everything that waits has been asked to end."""
    for _ in range(TURNS):
        if not run.watch.tasks:
            return
        await asyncio.sleep(0)
    await _end_tasks(run)


async def _end_tasks(run: Run) -> None:
    tasks = list(run.watch.tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()


# -- undoing


async def _undo(run: Run, body: Callable[[], Awaitable[Any]]) -> NoReturn:
    """Replay what was done, and undo it, last step first."""
    if run.unseen:
        await _find_undo_functions(run, body)
    await _run(run, lambda: _undo_steps(run))
    reason = run.job.workflow.undoing
    raise Undone((reason and reason.error) or "it was undone")


async def _find_undo_functions(run: Run, body: Callable[[], Awaitable[Any]]) -> None:
    """Find the undo functions: run the code up to the last step to undo, for at most as long as an attempt of
    the workflow may take. An interrupted step is run to its end.
    """
    timeout = run.job.timeout
    timer = run.loop.call_later(timeout / 1000, run.stop, Replayed()) if timeout else None
    try:
        await _run(run, lambda: _seen(run, body))
    except Unwind:
        if not isinstance(run.outcome, Replayed):
            raise
    finally:
        if timer is not None:
            timer.cancel()
    run.stop(Unwind())
    run.reopen()


async def _seen(run: Run, body: Callable[[], Awaitable[Any]]) -> None:
    """Run the function again, until it and everything that it has started reach the part that was
    not done.
    """
    task = asyncio.current_task()
    try:
        await body()
    except BaseException as error:  # the original failure is known, and it may fail differently now
        closed = type(error) is GeneratorExit and not runs(task)
        if run.outcome is not None or is_a(error, Unwind) or is_ctrl_c(error) or closed:
            raise
        while task is not None and task.uncancel():  # by its own code
            pass
    await run.pending_waits.never()


async def _undo_steps(run: Run) -> None:
    missing = min(run.unseen, key=lambda name: run.log.steps[name].number, default=None)
    for step, undo, value in sorted(run.undos, key=lambda each: each[0].number, reverse=True):
        name = UNDO_MARK + step.name
        known = run.log.steps.get(name)
        if known is None or known.status not in (COMPLETED, SKIPPED):
            try:
                await Attempts(run, name, undo_plan(undo, value), known, UNDO).run()
            except StepFailed as error:
                raise UndoFailed(error.error) from error.__cause__
    if missing is None:
        return
    if run.log.steps[missing].is_open:
        raise UndoFailed(f"step {missing!r} was cut off, and the code has not brought it to its end")
    raise UndoFailed(f"the code has no step {missing!r} with an undo any more, or has not come to it")
