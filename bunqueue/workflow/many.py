"""Many children of one kind, without a task for each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from bunqueue.errors import ChildFailed
from bunqueue.model.workflow import CANCELLED, CHILD, WAITING
from bunqueue.protocol.commands.workflows import StepAnswer, StepRecord
from bunqueue.workflow import values
from bunqueue.workflow.pending_waits import Park
from bunqueue.workflow.plans import Order
from bunqueue.workflow.run import A_TIME, Ended
from bunqueue.workflow.run_log import Claim, Conflict

if TYPE_CHECKING:
    from bunqueue.workflow.run import Run


class Many:
    """The children, in order."""

    def __init__(self, run: Run, orders: list[Order], claims: list[Claim | Conflict]) -> None:
        self._run = run
        self._orders = orders
        self._given = claims
        self._claims: list[Claim] = []
        self._results: list[Any] = [None] * len(orders)
        self._open: dict[int, int] = {}  # positions by the numbers of steps
        self._failed: ChildFailed | None = None
        self._park: Park | None = None  # of the open children, while they are waited for

    async def results(self, *, return_exceptions: bool) -> list[Any]:
        """Raises ChildFailed unless failures are returned among the results."""
        new = await self._known()
        if (new or self._open) and self._run.undoing:
            await self._run.pending_waits.never()
        self._run.check()
        names = [claim.name for claim in self._claims]
        try:
            await self._ask(new, names, start=True)
            if self._open and (self._failed is None or return_exceptions):
                await self._wait(names, return_exceptions=return_exceptions)
        except asyncio.CancelledError:
            self._cancel(names)
            raise
        if self._failed is not None and not return_exceptions:
            self._cancel(names)
            raise self._failed
        return self._results

    async def _known(self) -> list[int]:
        """Read what earlier runs have recorded; returns the positions of new children."""
        new, cancelled = [], []
        for place, given in enumerate(self._given):
            claim = await self._run.recalled(given)
            self._claims.append(claim)
            known = claim.known
            if known is None:
                new.append(place)
            elif known.is_open:
                self._open[known.number] = place
            elif known.status == CANCELLED:
                cancelled.append(place)
            else:
                raw = await self._run.raw(known)
                self._run.waits.found(known)
                self._enter(
                    place,
                    Ended(claim.name, known.status, raw, known.error or "", known.child, known.child_queue),
                )
        if cancelled and self._failed is None:  # the branch was cancelled, and will be again
            for place in cancelled:
                self._claims[place] = await self._run.anew(self._claims[place])
            return sorted(new + cancelled)
        for place in cancelled:  # together with the one that has failed
            self._enter(place, Ended(self._claims[place].name, CANCELLED, values.NIL, "", None, None))
        return new

    async def _wait(self, names: list[str], *, return_exceptions: bool) -> None:
        pending_waits = self._run.pending_waits
        self._park = pending_waits.stand({number: names[place] for number, place in self._open.items()})
        try:
            while self._open and (self._failed is None or return_exceptions):
                woken = await pending_waits.news(self._park)
                places = [
                    self._open[number] for number in (woken & self._open.keys() if woken else self._open)
                ]
                await self._ask(places, names, start=False)
        finally:
            pending_waits.leave(self._park)

    async def _ask(self, places: list[int], names: list[str], *, start: bool) -> None:
        """Start these, or ask for their state."""
        for begin in range(0, len(places), A_TIME):
            some = places[begin : begin + A_TIME]
            records = [self._record(place, names[place], start=start) for place in some]
            for place, answer in zip(some, await self._run.send(*records), strict=True):
                await self._on_answer(place, names[place], answer)

    def _record(self, place: int, name: str, *, start: bool) -> StepRecord:
        order = self._orders[place]
        child = self._run.waits.begins(name, order.job) if start else None
        return self._run.record(name, kind=CHILD, status=WAITING, arguments=order.arguments, child=child)

    async def _on_answer(self, place: int, name: str, answer: StepAnswer) -> None:
        if answer.status == WAITING:
            self._open[answer.number] = place
            return
        self._open.pop(answer.number, None)
        if self._park is not None:
            self._run.pending_waits.over(self._park, answer.number)
        self._over(place, answer)
        raw = await self._run.answered(name, answer)
        error = "" if answer.error is UNSET else answer.error
        child = None if answer.child is UNSET else answer.child
        self._enter(place, Ended(name, answer.status, raw, error, child, None))

    def _over(self, place: int, answer: StepAnswer) -> None:
        claim, queue = self._claims[place], self._orders[place].job.queue
        self._run.waits.over(claim.name, CHILD, claim.known, answer, queue=queue)

    def _enter(self, place: int, ended: Ended) -> None:
        try:
            self._results[place] = self._run.child_result(ended, self._orders[place])
        except ChildFailed as error:
            self._results[place] = error
            self._failed = self._failed or error

    def _cancel(self, names: list[str]) -> None:
        """The branch has lost or failed: the other children are no longer needed."""
        run = self._run
        if run.outcome is None and self._open:
            places = self._open.values()
            for place in places:
                self._over(place, StepAnswer(status=CANCELLED))
            run.pending += [run.record(names[place], kind=CHILD, status=CANCELLED) for place in places]
            run.send_soon()
