"""The unfinished waits of a run: which one to wake when, and what the run would be suspended for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextvars import ContextVar

from bunqueue.workflow.idle import AnyFuture, Parked
from bunqueue.workflow.outcomes import Unwind

ASK_AGAIN = 15.0  # seconds after which a wait is checked again, in case a notice was lost


class Group:
    """Waits that all have to end before the run continues."""


group_var: ContextVar[Group | None] = ContextVar("bunqueue.group", default=None)
"""Set where a branch of a `gather` consists only of a wait."""


class Park:
    """Steps that are waited for together."""

    __slots__ = ("future", "group", "names", "timer", "woken")

    def __init__(self, names: dict[int, str], future: AnyFuture, group: Group | None) -> None:
        self.names = names
        """By their numbers."""
        self.future = future
        self.group = group
        self.woken: set[int] = set()
        """The steps that have news. Once the future is done, an empty set means all of them."""
        self.timer: asyncio.TimerHandle | None = None


class PendingWaits:
    """The parks of one run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, short_ms: float, changed: Callable[[], None]) -> None:
        """Waits of up to `short_ms` do not end the run. `changed` is called when something is parked."""
        self._loop = loop
        self._short_ms = short_ms
        self._changed = changed
        self._parks: set[Park] = set()
        self._by_number: dict[int, Park] = {}
        self._news: set[int] = set()  # steps that ended before anything here waited for them
        self._idle_parks: set[Parked] = set()  # for code that never continues in this run
        self._poll: asyncio.TimerHandle | None = None
        self._closed = False

    async def wait(self, names: dict[int, str], left_ms: float | None) -> set[int]:
        """Wait until there may be news of these steps, given by number. Returns the steps with news; an empty
        set means all. Raises Unwind if the run ends instead. The first step ends on its own in `left_ms`.
        """
        if self._closed:
            raise Unwind
        if known := self._news & names.keys():
            self._news -= known
            return known
        stays = left_ms is not None and left_ms <= self._short_ms
        future: AnyFuture = self._loop.create_future() if stays else Parked(loop=self._loop)
        park = Park(names, future, group_var.get())
        self._begin(park, left_ms, stays=stays)
        try:
            await future
        finally:
            self._end(park)
        return park.woken

    def stand(self, names: dict[int, str]) -> Park:
        """A park for many steps that end one by one: `news` returns which, `leave` ends it. The cost of news
        of one step does not depend on their number.
        """
        park = Park(names, Parked(loop=self._loop), group_var.get())
        self._begin(park, None, stays=False)
        park.woken |= self._news & names.keys()
        self._news -= park.woken
        return park

    async def news(self, park: Park) -> set[int]:
        """The steps with news since the last call; an empty set means all. Raises Unwind if the run ends
        instead.
        """
        if self._closed:
            raise Unwind
        if not (park.woken or park.future.done()):
            self._changed()
            await park.future
        woken, park.woken = park.woken, set()
        park.future = Parked(loop=self._loop)
        return woken

    def over(self, park: Park, number: int) -> None:
        """A step of a standing park has ended."""
        park.names.pop(number, None)
        self._by_number.pop(number, None)

    def leave(self, park: Park) -> None:
        """Nobody waits for news of it any more."""
        self._end(park)
        if park.future.done() and not park.future.cancelled():
            park.future.exception()  # the end of the run is already known

    def _begin(self, park: Park, left_ms: float | None, *, stays: bool) -> None:
        self._parks.add(park)
        self._by_number |= dict.fromkeys(park.names, park)
        if left_ms is not None:
            park.timer = self._loop.call_later(left_ms / 1000, self._resolve, park)
        if self._poll is None:
            self._poll = self._loop.call_later(ASK_AGAIN, self._ask_again)
        if not stays:
            self._changed()

    def _end(self, park: Park) -> None:
        self._parks.discard(park)
        for number in park.names:
            self._by_number.pop(number, None)
        if park.timer is not None:
            park.timer.cancel()

    async def never(self) -> None:
        """Wait until the run ends, or until `release` is called. Raises Unwind."""
        if self._closed:
            raise Unwind
        future = Parked(loop=self._loop)
        self._idle_parks.add(future)
        self._changed()
        try:
            await future
        finally:
            self._idle_parks.discard(future)

    def release(self) -> bool:
        """Resume everything that waits in `never`; returns whether there was anything."""
        for future in (some := list(self._idle_parks)):
            if not future.done():
                future.set_result(None)
        return bool(some)

    def wake(self, number: int) -> None:
        """A step has ended."""
        park = self._by_number.get(number)
        if park is None:
            self._news.add(number)
            return
        park.woken.add(number)
        if not park.future.done():
            park.future.set_result(None)

    def _resolve(self, park: Park) -> None:
        if not park.future.done():
            park.woken.clear()
            park.future.set_result(None)

    def _ask_again(self) -> None:
        self._poll = None
        for park in self._parks:
            self._resolve(park)

    @property
    def groups(self) -> list[list[str]]:
        """What the run would be suspended for: groups of steps. It continues once all steps of a
        group end.
        """
        groups: list[list[str]] = []
        together: dict[Group, list[str]] = {}
        for park in self._parks:
            if park.group is None:
                groups.append(list(park.names.values()))
            else:
                together.setdefault(park.group, []).extend(park.names.values())
        return groups + list(together.values())

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits for something that may still come."""
        return not self._parks

    @property
    def is_used(self) -> bool:
        """Whether anything waits at all."""
        return bool(self._parks or self._idle_parks)

    def close(self) -> None:
        """The run ends: everything that waits raises Unwind."""
        self._closed = True
        if self._poll is not None:
            self._poll.cancel()
        waiting: Iterable[AnyFuture] = [*(park.future for park in self._parks), *self._idle_parks]
        for future in waiting:
            if not future.done():
                future.set_exception(Unwind())
