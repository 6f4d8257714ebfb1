"""What a workflow needs from the worker that runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from bunqueue.client.connection.replies import R
from bunqueue.protocol.commands.workflows import StepAnswer, StepRecord

if TYPE_CHECKING:
    from bunqueue.worker.active_job import ActiveJob
    from bunqueue.worker.middleware import Middleware
    from bunqueue.workflow.context import StepRun

Answers = list[StepAnswer | None]
AroundStep = Callable[["ActiveJob[Any]", "StepRun", Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Runs an attempt of a step, wrapped by middleware."""


class FlowChannel(Protocol):
    """Everything except `loop` is used in its event loop."""

    short_ms: float
    """Waits up to this long stay in the process."""

    @property
    def stopping(self) -> bool:
        """Whether the worker takes no more jobs."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop in which workflows run; workflows in threads run their waiting operations there."""

    @property
    def around_step(self) -> AroundStep | None:
        """Wraps each attempt of a step; None if no middleware does."""

    @property
    def observers(self) -> Sequence[Middleware]:
        """The middleware to notify of waits."""

    def record(self, job: ActiveJob[Any], records: list[StepRecord]) -> asyncio.Future[Answers]:
        """Store steps of a job; those of one job in the order given. The future has the answers, or
        BunqueueError.
        """

    async def ask(self, command: Struct, reply: type[R]) -> R:
        """Ask until the server answers. Raises CommandFailed."""

    def in_thread(
        self, function: Callable[[], Any], *, of_its_own: bool = False
    ) -> Awaitable[tuple[bool, Any]]:
        """Call a function in a thread, or in a new one with `of_its_own`, so that it never waits for another
        function. Returns whether it succeeded, and its value or exception.
        """

    async def pause(self, seconds: float) -> None:
        """Let time pass, for jobs that cannot end their run to wait."""
