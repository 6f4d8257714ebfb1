"""The current workflow and step, available at any call depth."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bunqueue.workflow.run import Run

run_var: ContextVar[Run | None] = ContextVar("bunqueue.current_run", default=None)
step_var: ContextVar[StepRun | None] = ContextVar("bunqueue.current_step", default=None)


class StepRun:
    """A running step. `current_step()` returns it to the step's function and everything that it calls."""

    __slots__ = ("_save", "attempt", "cursor", "key", "name")

    def __init__(
        self, name: str, key: str, attempt: int, cursor: Any, save: Callable[[Any], Awaitable[None]]
    ) -> None:
        self.name = name
        """Its name, with its number if it has one."""
        self.key = key
        """The same in every run and attempt, and different for every other step. External services can use it
        to refuse to do the same thing twice.
        """
        self.attempt = attempt
        """1, 2, ..."""
        self.cursor = cursor
        """The value that an earlier attempt saved last; None if none did."""
        self._save = save

    def __repr__(self) -> str:
        return f"<step {self.name!r}, attempt {self.attempt}>"

    def save(self, cursor: Any) -> Awaitable[None]:
        """Store the progress of the step: the next attempt finds it as `cursor`. Await it in a coroutine; in
        a plain function just call it, it returns when the server has it.
        """
        self.cursor = cursor
        return self._save(cursor)


def current_step() -> StepRun:
    """The step whose function is running here. Raises LookupError outside of steps."""
    step = step_var.get()
    if step is None:
        raise LookupError("no step runs here; flow.step() runs its function as one")
    return step
