"""What may take the place of every engine in this process: the sandbox of a test, see `bunqueue.testing`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from bunqueue.client.codecs.codec import Codec
    from bunqueue.client.connection.transport import Transport


class Substitute(Protocol):
    """Gets all commands, whatever engine they are meant for."""

    @property
    def now_ms(self) -> int:
        """The time by its clock, epoch ms."""

    async def open(self) -> Transport:
        """A session for this event loop."""

    def meet(self, codec: Codec) -> None:
        """A client is about to use this codec: what it says arrives encoded."""

    def step_function(self, workflow: str, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """What is called as a step of a workflow: its own function, or what a test has put in its place."""

    def call(self, command: Struct) -> bytes:
        """Carry out a command of a blocking client in its own thread; as `Transport.call`."""


current: Substitute | None = None
"""Looked at with each command, so that clients which a program made long ago take part, too."""
