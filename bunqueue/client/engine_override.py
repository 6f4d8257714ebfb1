"""A replacement for every engine in this process: the sandbox of a test, see `bunqueue.testing`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from bunqueue.client.codecs.codec import Codec
    from bunqueue.client.connection.transport import Transport


class EngineOverride(Protocol):
    """Receives all commands, whatever engine they are meant for."""

    @property
    def now_ms(self) -> int:
        """The time by its clock, epoch ms."""

    async def open(self) -> Transport:
        """A session for this event loop."""

    def meet(self, codec: Codec) -> None:
        """A client is about to use this codec: its commands arrive encoded."""

    def step_function(self, workflow: str, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function to call as a step of a workflow: the step's own, or a test's replacement."""

    def call(self, command: Struct) -> bytes:
        """Execute a command of a blocking client in the calling thread, like `Transport.call`."""


current: EngineOverride | None = None
"""Checked with each command, so it also applies to clients made earlier."""
