"""What a workflow needs of the worker that runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from bunqueue.client.connection.replies import R
from bunqueue.protocol.commands.workflows import StepAnswer, StepRecord

if TYPE_CHECKING:
    from bunqueue.client.worker.active_job import ActiveJob
    from bunqueue.client.worker.middleware import Middleware
    from bunqueue.client.workflow.context import StepRun

Answers = list[StepAnswer | None]
AroundStep = Callable[["ActiveJob[Any]", "StepRun", Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Runs an attempt of a step, within what middleware puts around it."""


class FlowChannel(Protocol):
    """All but `loop` is used in its event loop."""

    short_ms: float
    """Waits of up to so long stay in the process."""

    @property
    def stopping(self) -> bool:
        """Whether the worker takes no more jobs."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """In which workflows run, and those in threads have done what waits."""

    @property
    def around_step(self) -> AroundStep | None:
        """What is around each attempt of a step, if there is something."""

    @property
    def observers(self) -> Sequence[Middleware]:
        """Those that want to hear of waits."""

    def record(self, job: ActiveJob[Any], records: list[StepRecord]) -> asyncio.Future[Answers]:
        """Have steps of a job stored; those of one job in the order in which they come. The future has the
        answers, or BunqueueError."""

    async def ask(self, command: Struct, reply: type[R]) -> R:
        """Ask until the server answers. Raises CommandFailed."""

    def in_thread(
        self, function: Callable[[], Any], *, of_its_own: bool = False
    ) -> Awaitable[tuple[bool, Any]]:
        """Call a function in a thread, which may be one `of_its_own`, so that it waits for no other function:
        whether it succeeded, and its value or its exception."""

    async def pause(self, seconds: float) -> None:
        """Let time pass, for jobs that cannot end their run to wait."""
