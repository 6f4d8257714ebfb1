"""The client's classes over a verb's connection. Commands are checked before they are sent, so invalid input
is a usage error."""

from __future__ import annotations

from msgspec import Struct

from bunqueue.client.admin import AsyncAdmin
from bunqueue.client.blocking.admin import Admin
from bunqueue.client.blocking.flow import FlowProducer
from bunqueue.client.blocking.queue import Queue
from bunqueue.client.connection.caller import AsyncCaller, Caller
from bunqueue.client.connection.transport import Endpoint
from bunqueue.client.options import checks
from bunqueue.protocol.commands.core import Push, PushBatch
from bunqueue.protocol.commands.flows import AddFlow, PushFlow
from bunqueue.worker.middleware import Around

_CHECKED_ALREADY = (Push, PushBatch, PushFlow, AddFlow)  # option by option, when they are built


class CheckedCaller(Caller):
    """Raises OptionError, with field, value and bound, for commands beyond the protocol's bounds."""

    def raw(self, command: Struct) -> bytes:
        if not isinstance(command, _CHECKED_ALREADY):
            if isinstance(queue := getattr(command, "queue", None), str):
                checks.queue_name(queue)
            checks.checked(command)
        return super().raw(command)


class CheckedAdmin(Admin):
    """`Admin` over an existing connection."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller


class EndpointAdmin(AsyncAdmin):
    """`AsyncAdmin` over a connection of its own."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._caller = AsyncCaller(endpoint)


class CheckedQueue(Queue):
    """`Queue` over an existing connection."""

    def __init__(self, name: str, caller: Caller, wait_if_full: float) -> None:
        self.name = checks.queue_name(name)
        self._caller = caller
        self._defaults = {}
        self._around = None
        self._patience_s = wait_if_full / 1000


class Flows(FlowProducer):
    """`FlowProducer` over an existing connection."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._defaults = {}
        self._around = Around(())
