"""The types of a shard's table: see `table`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from bunqueue.model.ids import slot_of_id, slot_of_queue
from bunqueue.protocol.commands import Reply

from .state import Client, QueueState, State

Handler = Callable[[State, Client, Any], Reply | None]  # None: parked, answered later
PeerAnswer = Callable[[Any, int, Any], Any]  # state, the asking shard, its message
PeerDeferral = Callable[[Any, int, Any, Callable[[Any], None]], None]  # the same, and the callback
Farewell = Callable[[State, QueueState], None]
SlotOf = Callable[[str, str], int]  # key and JSON value of a record -> the slot whose shard keeps it


class Apart(Enum):
    """Records that are not simply passed to another shard when the number of shards changes."""

    DERIVED = "follow from jobs, and are rebuilt"
    UNSETTLED = "shards are in the middle of something"


class Record(NamedTuple):
    """A kind of stored record.  After a restart its function gets the state, the key and the JSON value.  All
    queues are known by then, but not the jobs."""

    recover: Callable[[State, str, str], None]
    slot: SlotOf | Apart


class Tables(NamedTuple):
    """The parts of the table that the rules use at run time."""

    handlers: Mapping[type, Handler]
    answers: Mapping[type, PeerAnswer]
    deferred: Mapping[type, PeerDeferral]
    farewells: tuple[Farewell, ...]


def at_queue(key: str, value: str) -> int:
    """The key is the name of a queue."""
    return slot_of_queue(key)


def at_id(key: str, value: str) -> int:
    """The key is the id of a job, and the record is on the shard to which the id points."""
    return slot_of_id(key)
