"""The client's parts over the connection of a verb. What is wrong with a command is found before it is sent,
so that bad input is bad usage.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct

from bunqueue.client.admin import AsyncAdmin
from bunqueue.client.blocking.admin import Admin
from bunqueue.client.blocking.flow import FlowProducer
from bunqueue.client.blocking.queue import Queue
from bunqueue.client.connection.caller import AsyncCaller, Caller
from bunqueue.client.connection.transport import Endpoint
from bunqueue.client.options import checks
from bunqueue.client.worker.middleware import Around
from bunqueue.protocol.commands import Reply
from bunqueue.protocol.commands.core import Push, PushBatch
from bunqueue.protocol.commands.flows import PushFlow

R = TypeVar("R", bound=Reply)

_CHECKED_ALREADY = (Push, PushBatch, PushFlow)  # option by option, as they are made


class CheckedCaller(Caller):
    """Raises OptionError, which names field, value and bound, for what the server would refuse unread."""

    def call(self, command: Struct, reply: type[R]) -> R:
        if not isinstance(command, _CHECKED_ALREADY):
            if isinstance(queue := getattr(command, "queue", None), str):
                checks.queue_name(queue)
            checks.checked(command)
        return super().call(command, reply)


class CheckedAdmin(Admin):
    """The server as a whole, over a connection that is there."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller


class EndpointAdmin(AsyncAdmin):
    """The server as a whole, for coroutines, over a connection of its own."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._caller = AsyncCaller(endpoint)


class CheckedQueue(Queue):
    """A queue over a connection that is there."""

    def __init__(self, name: str, caller: Caller) -> None:
        self.name = checks.queue_name(name)
        self._caller = caller
        self._defaults = {}
        self._around = None


class Flows(FlowProducer):
    """Flows over a connection that is there."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._defaults = {}
        self._around = Around(())
