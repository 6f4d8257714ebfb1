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


Children = dict[str, dict[int, Child]]  # by the id of the parent and the number of the step
