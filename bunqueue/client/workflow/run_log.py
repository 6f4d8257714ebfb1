"""Which step is which: the steps that earlier runs have recorded, and the names of those of this one.

A step is found again by its kind, its name and its arguments; of several that are equal, in the order in
which they were recorded. Numbers only keep names apart, so branches may come in another order each time.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from bunqueue.client.connection.options import refused, unfit
from bunqueue.client.models.workflows import Step
from bunqueue.model.workflow import COMPLETED, LEFT, MAX_STEP_NAME, SIGNAL, UNDO_MARK, VALUE

MOST = MAX_STEP_NAME - 16  # characters of a name; a number may follow, and "undo:" come before it
_NUMBERED = re.compile(r"#\d+$")
_LIKE_GENERATION = re.compile(r":\d+$")
_Free = dict[str | None, deque[Step]]
"""Recorded steps by the fingerprints of their arguments."""


@dataclass(slots=True)
class Claim:
    """A step of this run: its whole name, and how it was recorded, if it was."""

    name: str
    known: Step | None = None


@dataclass(frozen=True, slots=True)
class Conflict:
    """A step that was recorded only with other arguments, as far as those are free: it may be a new one, if
    these are asked for later in this run."""

    base: str
    kind: str
    arguments: str | None
    recorded: str
    """The name of one of them."""


class RunLog:
    """The steps of one run."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.steps: dict[str, Step] = {}
        """All that were recorded before, by name."""
        self._free: dict[tuple[str, str], _Free] = {}  # not asked for yet in this run
        self._left = 0  # of those
        self._names: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._given_up: list[Step] = []  # of branches that have lost
        for step in steps:
            self.enter(step)

    def enter(self, step: Step) -> None:
        """It was recorded by an earlier run."""
        self.steps[step.name] = step
        self._names.add(step.name)
        if not step.name.startswith(UNDO_MARK) and step.error != LEFT:
            free = self._free.setdefault((step.kind, base_of(step.name)), {})
            free.setdefault(step.arguments, deque()).append(step)
            self._left += 1

    @property
    def at_end(self) -> bool:
        """Whether this run has asked for all that was recorded: what follows is new."""
        return not self._left

    def claim(self, base: str, kind: str, arguments: str | None) -> Claim | Conflict:
        """The step that the workflow asks for now."""
        free = self._free.get((kind, base))
        if not free:
            return Claim(self.new_name(base))
        known = arguments if arguments in free else None if None in free else next(iter(free))
        if arguments is not None and known not in (None, arguments):
            return Conflict(base, kind, arguments, free[known][0].name)
        step = free[known].popleft()
        self._used(free, step)
        return Claim(step.name, step)

    def claim_own(self, base: str, kind: str, arguments: str | None) -> Claim:
        """The step that was recorded with these arguments, or a new one: others of its name are not meant."""
        free = self._free.get((kind, base), {})
        if arguments not in free:
            return Claim(self.new_name(base))
        step = free[arguments].popleft()
        self._used(free, step)
        return Claim(step.name, step)

    def claim_decided(self, base: str, what: str) -> Claim:
        """The value that was decided once: what earlier versions have recorded did not say `what` it is."""
        free = self._free.get((VALUE, base), {})
        return self.claim_own(base, VALUE, None if what not in free and None in free else what)

    def settle(self, conflict: Conflict) -> Claim | None:
        """What a conflict turns out to be; None: it still is one."""
        found = self.claim(conflict.base, conflict.kind, conflict.arguments)
        return found if isinstance(found, Claim) else None

    def consume(self, names: Iterable[str]) -> None:
        """These steps belong to branches that have lost, and are not asked for any more."""
        for name in names:
            step = self.steps.get(name)
            free = {} if step is None else self._free.get((step.kind, base_of(name)), {})
            if step is not None and step in free.get(step.arguments, ()):
                free[step.arguments].remove(step)
                self._used(free, step)
                self._given_up.append(step)

    def left_open(self) -> list[Step]:
        """Waits for signals that this run does not wait for: their branches have lost, or they are not in the
        code any more."""
        return [step for step in (*self._given_up, *self._left_waits()) if step.is_open]

    def left_unused(self) -> list[Step]:
        """Waits that have taken a signal and are not in the code any more, if nothing was begun since."""
        return [step for step in self._left_waits() if step.status == COMPLETED and not self._is_used(step)]

    def _left_waits(self) -> list[Step]:
        """Waits for signals that this run has not asked for."""
        return [
            step
            for (kind, _), free in self._free.items()
            if kind == SIGNAL
            for some in free.values()
            for step in some
        ]

    def _is_used(self, wait: Step) -> bool:
        ended = wait.ended_at_ms or 0.0
        return any(step.number > wait.number and step.started_at_ms >= ended for step in self.steps.values())

    def _used(self, free: _Free, step: Step) -> None:
        self._left -= 1
        if not free[step.arguments]:
            del free[step.arguments]

    def new_name(self, base: str) -> str:
        """A name that no step has: base, base#2, base#3, ..."""
        while True:
            self._counts[base] += 1
            number = self._counts[base]
            name = base if number == 1 else f"{base}#{number}"
            if name not in self._names:
                self._names.add(name)
                return name


def checked_name(name: str, what: str = "name") -> str:
    """The name of a step, without a number. OptionError."""
    if not isinstance(name, str) or not 0 < len(name) <= MOST:
        raise refused(what, name, f"is not allowed; give a text of 1 to {MOST} characters")
    if name.startswith(UNDO_MARK) or _NUMBERED.search(name):
        raise unfit(
            what,
            f"{name!r} is not allowed: names of steps do not begin with {UNDO_MARK!r}, nor end with a number "
            f"as in #1",
        )
    return name


def key_of(job_id: str, name: str, generation: int, *, unambiguous: bool) -> str:
    """The idempotency key of a step; no other step of any job has the same, if it is unambiguous: the first
    colon ends the id, and a number after the last one is told wherever the name ends like that."""
    own = job_id.replace("%", "%25").replace(":", "%3A") if unambiguous else job_id
    told = generation or _LIKE_GENERATION.search(name)  # "a:1" must not get the key of "a", begun again
    return f"{own}:{name}" + (f":{generation}" if told else "")


def base_of(name: str) -> str:
    """A name without its number."""
    return _NUMBERED.sub("", name)
