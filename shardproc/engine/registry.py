"""Which function handles which command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from bunqueue.protocol.commands import Reply

from .state import Client, QueueState, State

Handler = Callable[[State, Client, Any], Reply | None]  # None: parked, answered later

HANDLERS: dict[type, Handler] = {}

Recovery = Callable[[State, str, str], None]  # state, key and JSON value of a record

RECOVERIES: dict[str, Recovery] = {}

Farewell = Callable[[State, QueueState], None]

FAREWELLS: list[Farewell] = []

F = TypeVar("F", bound=Callable[..., Reply | None])


def handles(command: type) -> Callable[[F], F]:
    """Enter a function as the handler of ``command``.

    It either changes nothing and raises CommandError, or does all it should and returns the reply.
    """

    def enter(function: F) -> F:
        HANDLERS[command] = function
        return function

    return enter


def recovers(kind: str) -> Callable[[Recovery], Recovery]:
    """Enter the function that takes the records of ``kind`` back after a restart.

    All queues are known by then, jobs are not.
    """

    def enter(function: Recovery) -> Recovery:
        RECOVERIES[kind] = function
        return function

    return enter


def obliterates(function: Farewell) -> Farewell:
    """Enter a function that forgets what was set for a queue, its records included: Obliterate calls it
    when the queue's jobs are gone."""
    FAREWELLS.append(function)
    return function
