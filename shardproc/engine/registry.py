"""Which function handles which command."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from bunqueue.model.ids import slot_of_id, slot_of_queue
from bunqueue.protocol.commands import Reply

from .state import Client, QueueState, State

Handler = Callable[[State, Client, Any], Reply | None]  # None: parked, answered later

HANDLERS: dict[type, Handler] = {}

Recovery = Callable[[State, str, str], None]  # state, key and JSON value of a record

RECOVERIES: dict[str, Recovery] = {}

SlotOf = Callable[[str, str], int]  # key and JSON value of a record -> the slot whose shard keeps it


class Apart(Enum):
    """Records that do not simply go to another shard when the number of shards changes."""

    DERIVED = "follow from jobs, and are made anew"
    UNSETTLED = "shards are in the middle of something"


SLOTS: dict[str, SlotOf | Apart] = {}

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


def recovers(kind: str, slot: SlotOf | Apart) -> Callable[[Recovery], Recovery]:
    """Enter the function that takes the records of ``kind`` back after a restart, and where they belong.

    All queues are known by then, jobs are not.
    """

    def enter(function: Recovery) -> Recovery:
        RECOVERIES[kind] = function
        SLOTS[kind] = slot
        return function

    return enter


def at_queue(key: str, value: str) -> int:
    """The key is the name of a queue."""
    return slot_of_queue(key)


def at_id(key: str, value: str) -> int:
    """The key is the id of a job, and the record is where the id points to."""
    return slot_of_id(key)


def obliterates(function: Farewell) -> Farewell:
    """Enter a function that forgets what was set for a queue, its records included: Obliterate calls it
    when the queue's jobs are gone."""
    FAREWELLS.append(function)
    return function
