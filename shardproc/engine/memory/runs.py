"""What is known in memory of workflows: the heads of the steps of active ones, and children that have not
ended.  Plain data without rules."""

from __future__ import annotations

from msgspec import Struct

from bunqueue.model.workflow import CHILD, UNDO

from ..run_writes import StepHead


class OpenRun(Struct, gc=False):
    """The steps of a job that is active, by name."""

    heads: dict[str, StepHead] = {}
    names: dict[int, str] = {}  # by number
    last: int = 0  # the highest number
    steps: int = 0  # those that count, so neither children nor undo steps
    children: int = 0

    def enter(self, head: StepHead) -> None:
        """A step is recorded for the first time."""
        self.heads[head.name] = head
        self.names[head.number] = head.name
        self.last = max(self.last, head.number)
        if head.kind == CHILD:
            self.children += 1
        elif head.kind != UNDO:
            self.steps += 1


class Child(Struct, gc=False):
    """A child that has not ended, as its parent's shard knows it."""

    id: str
    queue: str
    starting: bool = False  # its shard has not said yet that it has it


class Children:
    """The children of one workflow that have not ended.  Several steps may stand for one of them: with an id
    of the user's own, or a unique key."""

    __slots__ = ("by_step", "steps")

    def __init__(self) -> None:
        self.by_step: dict[int, Child] = {}  # by the number of the step
        self.steps: dict[str, dict[int, None]] = {}  # the numbers of the steps of each, by its id

    def add(self, number: int, child: Child) -> None:
        self.by_step[number] = child
        self.steps.setdefault(child.id, {})[number] = None

    def pop(self, number: int) -> Child | None:
        child = self.by_step.pop(number, None)
        if child is not None:
            self._leave(number, child.id)
        return child

    def rename(self, number: int, child_id: str) -> None:
        """Another job turns out to stand for the child."""
        child = self.by_step[number]
        self._leave(number, child.id)
        child.id = child_id
        self.add(number, child)

    def _leave(self, number: int, child_id: str) -> None:
        numbers = self.steps[child_id]
        del numbers[number]
        if not numbers:
            del self.steps[child_id]
