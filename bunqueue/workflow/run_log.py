"""Identifies steps: those that earlier runs have recorded, and the names of those of this run.

A step is found again by its kind, name and arguments; equal steps in the order of their recording.
Numbers only keep names apart, so branches may come in a different order each time.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from bunqueue.client.connection.options import refused, unfit
from bunqueue.client.models.workflows import Step
from bunqueue.model.workflow import COMPLETED, LEFT, MAX_STEP_NAME, SIGNAL, UNDO_MARK

MOST = MAX_STEP_NAME - 16  # characters of a name; a number may follow, and "undo:" precede it
_NUMBERED = re.compile(r"#\d+$")
_LIKE_GENERATION = re.compile(r":\d+$")
_Free = dict[str | None, deque[Step]]
"""Recorded steps by the fingerprints of their arguments."""


@dataclass(slots=True)
class Claim:
    """A step of this run: its full name, and its earlier record, if any."""

    name: str
    known: Step | None = None


@dataclass(frozen=True, slots=True)
class Conflict:
    """A step that was only recorded with other arguments that are still unclaimed. It may be a new step if
    those are claimed later in this run.
    """

    base: str
    kind: str
    arguments: str | None
    recorded: str
    """The name of one of the recorded steps."""


class RunLog:
    """The steps of one run."""

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self.steps: dict[str, Step] = {}
        """All that were recorded before, by name."""
        self._free: dict[tuple[str, str], _Free] = {}  # not claimed yet in this run
        self._left = 0  # the number of those
        self._names: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._given_up: list[Step] = []  # steps of branches that have lost
        for step in steps:
            self.enter(step)

    def enter(self, step: Step) -> None:
        """Add a step that an earlier run recorded."""
        self.steps[step.name] = step
        self._names.add(step.name)
        if not step.name.startswith(UNDO_MARK) and step.error != LEFT:
            free = self._free.setdefault((step.kind, base_of(step.name)), {})
            free.setdefault(step.arguments, deque()).append(step)
            self._left += 1

    @property
    def at_end(self) -> bool:
        """Whether this run has claimed everything that was recorded: what follows is new."""
        return not self._left

    def claim(self, base: str, kind: str, arguments: str | None) -> Claim | Conflict:
        """Claim the step that the workflow now asks for."""
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
        """Claim the step that was recorded with these arguments, or a new one; never another of the same
        name.
        """
        free = self._free.get((kind, base), {})
        if arguments not in free:
            return Claim(self.new_name(base))
        step = free[arguments].popleft()
        self._used(free, step)
        return Claim(step.name, step)

    def resolve(self, conflict: Conflict) -> Claim | None:
        """Resolve a conflict; None if it still is one."""
        found = self.claim(conflict.base, conflict.kind, conflict.arguments)
        return found if isinstance(found, Claim) else None

    def consume(self, names: Iterable[str]) -> None:
        """Claim these steps: they belong to branches that have lost."""
        for name in names:
            step = self.steps.get(name)
            free = {} if step is None else self._free.get((step.kind, base_of(name)), {})
            if step is not None and step in free.get(step.arguments, ()):
                free[step.arguments].remove(step)
                self._used(free, step)
                self._given_up.append(step)

    def left_open(self) -> list[Step]:
        """Waits for signals that this run does not wait for: their branches have lost, or the code no longer
        has them.
        """
        return [step for step in (*self._given_up, *self._left_waits()) if step.is_open]

    def left_unused(self) -> list[Step]:
        """Waits that have taken a signal and are no longer in the code, if no step has begun since."""
        return [step for step in self._left_waits() if step.status == COMPLETED and not self._is_used(step)]

    def _left_waits(self) -> list[Step]:
        """Waits for signals that this run has not claimed."""
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
        """An unused step name: base, base#2, base#3, ..."""
        while True:
            self._counts[base] += 1
            number = self._counts[base]
            name = base if number == 1 else f"{base}#{number}"
            if name not in self._names:
                self._names.add(name)
                return name


def checked_name(name: str, what: str = "name") -> str:
    """The name of a step, without a number. Raises OptionError."""
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
    """The idempotency key of a step. If it is unambiguous, no other step of any job has the same: the first
    colon ends the id, and the generation is included whenever the name ends like one.
    """
    own = job_id.replace("%", "%25").replace(":", "%3A") if unambiguous else job_id
    told = generation or _LIKE_GENERATION.search(name)  # "a:1" must not get the key of "a" in generation 1
    return f"{own}:{name}" + (f":{generation}" if told else "")


def base_of(name: str) -> str:
    """A name without its number."""
    return _NUMBERED.sub("", name)
