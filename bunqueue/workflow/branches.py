"""Parallel branches of a workflow: wait for all of them, the first to end, or the first to succeed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET, Struct

from bunqueue.client.connection.options import refused, unfit
from bunqueue.errors import OptionError
from bunqueue.model.decoders import decoder
from bunqueue.model.workflow import VALUE
from bunqueue.workflow import values
from bunqueue.workflow.exits import contained, raised, result_of, revealed
from bunqueue.workflow.pending_waits import Group, group_var
from bunqueue.workflow.run import branch_var

if TYPE_CHECKING:
    from bunqueue.workflow.run import Run

Branch = Awaitable[Any]
T = TypeVar("T")
_ALLOWED = "calls of flow.step, flow.sleep, flow.wait_for or flow.run, or of coroutine functions"


class _Winner(Struct, array_like=True):
    """The stored result of a race."""

    winner: int
    lost: list[str]  # steps of the other branches


_decode_winner = decoder(_Winner).decode


def one_way(what: str, branches: Sequence[T], named: Mapping[str, T]) -> list[T]:
    """The branches of a race, all with names or all without. Raises OptionError."""
    every = [*branches, *named.values()]
    if branches and named:
        raise _none_runs(unfit(what, "give all branches a name, or none"), every)
    if not every:
        raise unfit(what, "give one branch at least")
    return every


def check_branches(what: str, branches: Sequence[Any]) -> None:
    """Raise OptionError for branches that cannot be awaited."""
    known: set[int] = set()
    for branch in branches:
        if not isinstance(branch, Awaitable):
            why = f"cannot be awaited; give {_ALLOWED}; a list of them with a * before it"
            raise _none_runs(refused(what, branch, why, _ALLOWED), branches)
        if isinstance(branch, Coroutine) and id(branch) in known:
            raise _none_runs(refused(what, branch, "is given twice; call it once for each branch"), branches)
        known.add(id(branch))


def _none_runs(error: OptionError, branches: Sequence[Any]) -> OptionError:
    """Close the branches; otherwise Python would warn that each was never awaited."""
    for branch in branches:
        if isinstance(branch, Coroutine):
            branch.close()
    return error


async def gather(run: Run, branches: Sequence[Branch], *, return_exceptions: bool) -> list[Any]:
    """See `Flow.gather`."""
    check_branches("gather", branches)
    group = Group()
    tasks = [_begin(each, _context(group if run.is_wait(each) else None)) for each in branches]
    try:
        found = await revealed(asyncio.gather(*tasks, return_exceptions=return_exceptions))
    finally:
        if not run.undoing:  # else the work of the other branches also has to be undone
            await _end(tasks)
    run.check()  # the results may come from unwinding the branches
    return [raised(each) for each in found]


class Race:
    """A race of branches: the first to end wins or, if errors do not count, the first to succeed."""

    def __init__(self, run: Run, what: str, branches: Sequence[Branch], *, errors_count: bool) -> None:
        check_branches(what, branches)
        self._run = run
        self._branches = branches
        self._errors_count = errors_count
        self._names = [run.names_of(each) for each in branches]
        # Another of several concurrent races may have ended first: its branches identify each race.
        self._arguments = values.fingerprint((self._names,), {}) if any(self._names) else None
        self.claim = run.claim_own(what, VALUE, self._arguments)

    async def run(self) -> tuple[int, Any]:
        """The winner's position and result. Raises the winner's exception, or an ExceptionGroup if none
        succeeded.
        """
        known = self.claim.known
        if known is not None and known.raw_result is not UNSET:
            return await self._again(_decode_winner(known.raw_result))
        tasks = [
            _begin(each, _context(None, names))
            for each, names in zip(self._branches, self._names, strict=True)
        ]
        try:
            winner = await self._winner(tasks)
        finally:
            await _end(tasks)
        self._run.check()
        lost = [name for place, names in enumerate(self._names) if place != winner for name in names]
        result = values.stored(_Winner(winner, lost), "the winner")
        await self._run.send(
            self._run.record(self.claim.name, kind=VALUE, result=result, arguments=self._arguments)
        )
        return winner, result_of(tasks[winner])

    async def _winner(self, tasks: list[asyncio.Task[Any]]) -> int:
        waiting = set(tasks)
        while waiting:
            ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            self._run.check()
            for place, task in enumerate(tasks):
                if task in ended and (self._errors_count or _succeeded(task)):
                    return place
        raise BaseExceptionGroup(f"{self.claim.name}: no branch has succeeded", [*map(_error_of, tasks)])

    async def _again(self, known: _Winner) -> tuple[int, Any]:
        """The same winner as before."""
        if self._run.undoing:  # the others are also undone: they continue in parallel
            tasks = [_begin(each, _context(None)) for each in self._branches]
            for task in tasks:
                task.add_done_callback(_know)  # failures of the losers do not matter
            return known.winner, await revealed(tasks[known.winner])
        self._run.log.consume(known.lost)
        for place, branch in enumerate(self._branches):
            if place != known.winner and isinstance(branch, Coroutine):
                branch.close()
        return known.winner, await self._branches[known.winner]


def _succeeded(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and task.exception() is None


def _error_of(task: asyncio.Task[Any]) -> BaseException:
    """The error of a failed branch, or of one cancelled by its own code."""
    error = None if task.cancelled() else task.exception()
    return asyncio.CancelledError() if error is None else raised(error)


def _context(group: Group | None, names: list[str] | None = None) -> Context:
    context = copy_context()
    context.run(group_var.set, group)
    if names is not None:
        context.run(branch_var.set, (*branch_var.get(), names))
    return context


def _begin(branch: Branch, context: Context) -> asyncio.Task[Any]:
    coroutine = branch if isinstance(branch, Coroutine) else _awaited(branch)
    return asyncio.get_running_loop().create_task(contained(coroutine), context=context)


async def _awaited(branch: Branch) -> Any:
    return await branch


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel what still runs, and wait until it has ended."""
    left = [task for task in tasks if not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
    for task in tasks:
        _know(task)


def _know(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception, so that asyncio does not warn that nobody did."""
    if not task.cancelled():
        task.exception()
