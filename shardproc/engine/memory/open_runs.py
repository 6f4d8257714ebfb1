"""The part of workflows kept in memory: the heads of the steps of active ones, and children that have not
ended.  Plain data without rules."""

from __future__ import annotations

from msgspec import Struct

from bunqueue.model.workflow import CHILD, UNDO

from ..run_writes import StepHead


class OpenRun(Struct, gc=False):
    """The steps of an active job, by name."""

    heads: dict[str, StepHead] = {}
    names: dict[int, str] = {}  # by number
    last: int = 0  # the highest number
    steps: int = 0  # steps that count, without children and undo steps
    children: int = 0

    def enter(self, head: StepHead) -> None:
        """Add a step that is recorded for the first time."""
        self.heads[head.name] = head
        self.names[head.number] = head.name
        self.last = max(self.last, head.number)
        if head.kind == CHILD:
            self.children += 1
        elif head.kind != UNDO:
            self.steps += 1


class Child(Struct, gc=False):
    """A child that has not ended, as known to its parent's shard."""

    id: str
    queue: str
    starting: bool = False  # its shard has not confirmed it yet


class Children:
    """The children of one workflow that have not ended.  Several steps may refer to the same child, through
    an id chosen by the user or a unique key."""

    __slots__ = ("by_step", "steps")

    def __init__(self) -> None:
        self.by_step: dict[int, Child] = {}  # by the number of the step
        self.steps: dict[str, dict[int, None]] = {}  # step numbers by id of the child

    def add(self, number: int, child: Child) -> None:
        self.by_step[number] = child
        self.steps.setdefault(child.id, {})[number] = None

    def pop(self, number: int) -> Child | None:
        child = self.by_step.pop(number, None)
        if child is not None:
            self._leave(number, child.id)
        return child

    def rename(self, number: int, child_id: str) -> None:
        """Replace the child by another job, which has turned out to be the real one."""
        child = self.by_step[number]
        self._leave(number, child.id)
        child.id = child_id
        self.add(number, child)

    def _leave(self, number: int, child_id: str) -> None:
        numbers = self.steps[child_id]
        del numbers[number]
        if not numbers:
            del self.steps[child_id]
