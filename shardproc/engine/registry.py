"""Which function handles what: each says so itself, with a decorator.

    @handles(Pause)
    def pause(state: State, client: Client, command: Pause) -> Ok: ...

`table` imports all modules that have such functions, and checks that no command is without one.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

from bunqueue.model.ids import slot_of_id, slot_of_queue
from bunqueue.model.names import parts_of
from bunqueue.server.commands import handler_table

if TYPE_CHECKING:
    from bunqueue.protocol.commands import Reply
    from bunqueue.server.links.peers import Message

    from .state import Client, QueueState, State

C = TypeVar("C", bound=Struct)
M = TypeVar("M", bound="Message")
R = TypeVar("R", bound="Reply | None")  # None: parked, answered later
A = TypeVar("A")

Handler: TypeAlias = "Callable[[State, Client, Any], Reply | None]"
Answer: TypeAlias = "Callable[[State, int, Any], Any]"  # state, the asking shard, its message
Deliver: TypeAlias = Callable[[Any], None]
LateAnswer: TypeAlias = "Callable[[State, int, Any, Deliver], None]"
Recover: TypeAlias = "Callable[[State, str, str], None]"  # state, the key and the JSON value of a record
Forget: TypeAlias = "Callable[[State, QueueState], None]"
SlotOf: TypeAlias = Callable[[str, str], int]  # key and value of a record -> the slot whose shard keeps it


class Apart(Enum):
    """Records that are not simply passed to another shard when the number of shards changes."""

    DERIVED = "follow from jobs, and are rebuilt"
    UNSETTLED = "shards are in the middle of something"


class Record(NamedTuple):
    """A kind of stored record."""

    recover: Recover
    slot: SlotOf | Apart


HANDLERS: dict[type[Struct], Handler] = {}
ANSWERS: dict[type[Struct], Answer] = {}
LATE_ANSWERS: dict[type[Struct], LateAnswer] = {}
RECORDS: dict[str, Record] = {}
FORGETS: list[Forget] = []


def handles(
    command: type[C],
) -> Callable[[Callable[[State, Client, C], R]], Callable[[State, Client, C], R]]:
    """The function carries out a command.  It either raises CommandError and changes nothing, or does
    everything and returns the reply; None means that the reply comes later."""

    def enter(function: Callable[[State, Client, C], R]) -> Callable[[State, Client, C], R]:
        handler_table.enter(HANDLERS, command, function)
        return function

    return enter


def answers(message: type[M]) -> Callable[[Callable[[State, int, M], A]], Callable[[State, int, M], A]]:
    """The function answers a message from another shard: it returns the answer, or is a generator that
    does."""

    def enter(function: Callable[[State, int, M], A]) -> Callable[[State, int, M], A]:
        handler_table.enter(ANSWERS, message, function)
        return function

    return enter


def answers_late(
    message: type[M],
) -> Callable[[Callable[[State, int, M, Deliver], None]], Callable[[State, int, M, Deliver], None]]:
    """The function delivers its answer to a message from another shard when it has one."""

    def enter(
        function: Callable[[State, int, M, Deliver], None],
    ) -> Callable[[State, int, M, Deliver], None]:
        handler_table.enter(LATE_ANSWERS, message, function)
        return function

    return enter


def recovers(kind: str, slot: SlotOf | Apart) -> Callable[[Recover], Recover]:
    """The function restores a record of a kind after a restart.  All queues are known by then, but not the
    jobs.  ``slot``: which shard keeps the record after the number of shards has changed."""

    def enter(function: Recover) -> Recover:
        handler_table.enter(RECORDS, kind, Record(function, slot))
        return function

    return enter


def when_obliterated(function: Forget) -> Forget:
    """The function forgets a queue's settings: Obliterate calls it when the queue's jobs are gone."""
    FORGETS.append(function)
    return function


def at_queue(key: str, value: str) -> int:
    """The slot of a record whose key is the name of a queue."""
    return slot_of_queue(key)


def at_queue_in(key: str, value: str) -> int:
    """The slot of a record about something of a queue: see `record_key`."""
    return slot_of_queue(parts_of(key)[0])


def at_id(key: str, value: str) -> int:
    """The slot of a record whose key is the id of a job, and which is on the shard to which the id points."""
    return slot_of_id(key)
