"""The functions that an app calls when something happens to it or to its jobs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, Literal, get_args

from bunqueue.client.connection.options import shown
from bunqueue.errors import OptionError
from bunqueue.worker.active_job import ActiveJob
from bunqueue.worker.reporting.failures import is_last
from bunqueue.worker.user_code import Calls

logger = logging.getLogger("bunqueue.app")

Occasion = Literal["startup", "shutdown", "completed", "failed", "exhausted", "stopped", "error"]
"""When a hook is called, and with what:

- startup(), before the first job is taken; shutdown(), after the last one has ended;
- completed(job, result), failed(job, error) after each failed attempt, exhausted(job, error) after the last
  one, when the job is a dead letter; all when the server knows;
- stopped(job, error) when a run was ended before it was done: JobCancelled, JobInterrupted, Postpone;
- error(error): a lost lock, a lost connection.
"""
Hook = Callable[..., Any]


class Hooks:
    """Functions and coroutine functions by occasion."""

    def __init__(self) -> None:
        self._hooks: dict[str, list[Hook]] = {name: [] for name in get_args(Occasion)}
        self._calls = Calls(logger)

    def of(self, occasion: str) -> list[Hook]:
        """The hooks of an occasion. The caller may add to the list."""
        if occasion not in self._hooks:
            raise OptionError(
                f"on: there is no {shown(occasion)}; there are {', '.join(self._hooks)}",
                field="on",
                value=occasion,
            )
        return self._hooks[occasion]

    def has(self, *occasions: Occasion) -> bool:
        """Whether there is a hook for one of these occasions."""
        return any(self._hooks[occasion] for occasion in occasions)

    async def call(self, occasion: Occasion) -> None:
        """Call the hooks one after the other. An exception of one is raised."""
        for hook in self._hooks[occasion]:
            result = hook()
            if inspect.isawaitable(result):
                await result

    def fire(self, occasion: Occasion, *arguments: Any) -> None:
        """Call the hooks now, coroutines in the background. Their exceptions are logged."""
        for hook in self._hooks[occasion]:
            self._calls.call(hook, *arguments)

    def failed(self, job: ActiveJob, error: BaseException) -> None:
        """Call the hooks of a failed attempt."""
        self.fire("failed", job, error)
        if is_last(job, error):
            self.fire("exhausted", job, error)

    async def finish(self, patience: float) -> None:
        """Wait for the hooks in the background. Those that take longer than `patience` seconds are
        cancelled."""
        await self._calls.finish(patience)
