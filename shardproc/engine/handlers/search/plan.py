"""Where to search: in which queues, among live or finished jobs, and in which ranges of numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct, structs

from bunqueue.model.job import Job
from bunqueue.model.states import STATES
from bunqueue.protocol.commands.find import Plan as Shown
from bunqueue.protocol.commands.find import Wanted
from bunqueue.protocol.search.conditions import DEAD, LIVE, Condition, matches, name_of
from bunqueue.protocol.search.cursor import BEGIN, DONE, Cursor
from bunqueue.protocol.search.wanted import conditions_of

from ...criteria import Criteria
from ...lookup import known_queue
from ...scoped import is_limited, queues_of
from ...state import Client, QueueState, State
from .matching import ONLY_STORED

FEW_QUEUES = 4  # up to this many are searched one by one
NO_LIMIT = 2**53
FEW_LIVE = 50_000  # live jobs that are sorted in memory; about 5 ms

_INDEXED = ("name", "tag", "group", "created", "finished")
_SMALL: dict[str, Callable[[QueueState], list[dict[int, Job]]]] = {
    "delayed": lambda queue: [queue.delayed],
    "active": lambda queue: [queue.active],
    "waiting-children": lambda queue: [queue.blocked, queue.suspended],
    "waiting-signal": lambda queue: [queue.suspended],
}
"""States with a table of their own, so jobs in them are found without scanning the rest."""


class Live(NamedTuple):
    """Numbers in ascending order, and the queue of each."""

    seqs: list[int]
    queues: dict[int, QueueState]


class Plan(Struct):
    """See the module."""

    conditions: list[Condition]  # conditions for the jobs of these queues
    queues: list[QueueState]
    criteria: Criteria | None  # None: the archive is not searched
    live: Live | None  # live candidates; None: the archive finds them
    ranges: list[tuple[int, int]]  # of numbers, in search order
    jobs: int  # maximum number of jobs inspected
    by: list[str]
    most: int  # the largest number of jobs that the client may learn were inspected, in one answer

    @property
    def density(self) -> float:
        """Jobs inspected per number of the ranges, on average."""
        width = sum(last - first + 1 for first, last in self.ranges)
        return min(1.0, self.jobs / width) if width else 1.0

    @property
    def shown(self) -> Shown:
        return Shown(self.by, min(self.jobs, self.most))


def plan(state: State, client: Client, wanted: Wanted, cursor: Cursor, *, asc: bool, until: int) -> Plan:
    """The way to find jobs beyond a cursor, with numbers below ``until``."""
    prefix = "" if client.scope is None else client.scope.prefix
    conditions = [structs.replace(each, prefix=prefix) for each in conditions_of(wanted, cursor.at)]
    queues = _queues(state, client, wanted, conditions)
    rest = [condition for condition in conditions if condition.field != "queue"]
    kinds = _kinds(rest)
    first, last = _bounds(state, cursor, asc, until)
    if not queues or not kinds or first > last:
        return Plan(rest, queues, None, None, [], 0, [], 0)
    ranges = state.archive.searches.ranges(rest, first, last)
    stored = any(condition.field in ONLY_STORED for condition in rest) and kinds & LIVE
    live = None if stored else _live(queues, kinds & LIVE)
    criteria = _criteria(state, rest, queues, kinds, in_memory=live is not None, every=wanted.queue is None)
    jobs, by = _extent(state, criteria, queues, live, ranges)
    used = [field for field in _INDEXED if any(condition.field == field for condition in rest)]
    most = sum(map(_size_of, queues)) if is_limited(client) else NO_LIMIT
    if ranges != [(first, last)]:
        by = [*used, *by]
    return Plan(rest, queues, criteria, live, ranges if asc else ranges[::-1], jobs, by, most)


def _size_of(queue: QueueState) -> int:
    """The number of its jobs."""
    return len(queue.jobs) + len(queue.late) + queue.completed + queue.failed


def _queues(
    state: State, client: Client, wanted: Wanted, conditions: Sequence[Condition]
) -> list[QueueState]:
    mine = [condition for condition in conditions if condition.field == "queue"]
    if wanted.queue is not None:
        queue = known_queue(state, wanted.queue)
        found = [] if queue is None else [queue]
    else:
        found = queues_of(state, client)
    if mine:
        found = [queue for queue in found if all(matches(each, name_of(each, queue.name)) for each in mine)]
    return found


def _kinds(conditions: Sequence[Condition]) -> frozenset[str]:
    """The states of jobs that can meet the conditions."""
    mine = [condition for condition in conditions if condition.field == "state"]
    found = {name for name in STATES if all(matches(condition, name) for condition in mine)}
    fields = {condition.field for condition in conditions}
    if "finished" in fields:
        found -= LIVE
    if any(condition.field == "error" and condition.comparison != "!=" for condition in conditions):
        found.discard("completed")
    return frozenset(found)


def _bounds(state: State, cursor: Cursor, asc: bool, until: int) -> tuple[int, int]:
    place = cursor.places[state.shard]
    first, last = state.archive.searches.first_seq(), until - 1
    if place == DONE:
        return 0, -1
    if place != BEGIN and asc:
        first = max(first, place + 1)
    elif place != BEGIN:
        last = min(last, place - 1)
    return first, last


def _live(queues: Sequence[QueueState], kinds: frozenset[str]) -> Live | None:
    """The live jobs in these states, if there are few."""
    if not kinds:
        return Live([], {})
    if kinds <= _SMALL.keys():
        places = [(queue, jobs) for queue in queues for kind in kinds for jobs in _SMALL[kind](queue)]
    else:
        places = [(queue, jobs) for queue in queues for jobs in (queue.jobs, queue.late)]
    if sum(len(jobs) for _, jobs in places) > FEW_LIVE:
        return None
    found = {seq: queue for queue, jobs in places for seq in jobs}
    return Live(sorted(found), found)


def _criteria(
    state: State,
    conditions: list[Condition],
    queues: Sequence[QueueState],
    kinds: frozenset[str],
    *,
    in_memory: bool,
    every: bool,
) -> Criteria | None:
    completed = "completed" in kinds and any(queue.completed for queue in queues)
    dead = not kinds.isdisjoint(DEAD) and any(queue.failed for queue in queues)
    if in_memory and not completed and not dead:
        return None
    alone = len(queues) <= FEW_QUEUES and in_memory
    rows = _finished(queues, completed, dead)
    by_queue = alone and 2 * rows < state.next_seq - state.archive.searches.first_seq()
    every = every and len(queues) == len(state.queues) and not by_queue
    ids = None if every else tuple(queue.id for queue in queues)
    return Criteria(conditions, ids, completed, dead, not in_memory, by_queue)


def _finished(queues: Sequence[QueueState], completed: bool, dead: bool) -> int:
    return sum(queue.completed * completed + queue.failed * dead for queue in queues)


def _extent(
    state: State,
    criteria: Criteria | None,
    queues: Sequence[QueueState],
    live: Live | None,
    ranges: Sequence[tuple[int, int]],
) -> tuple[int, list[str]]:
    """The maximum number of jobs to inspect, and what narrows them down apart from an index."""
    width = sum(last - first + 1 for first, last in ranges)
    in_memory = 0 if live is None else len(live.seqs)
    if criteria is None:
        return min(width, in_memory), ["state"]
    rows = _finished(queues, criteria.completed, criteria.dead)
    if criteria.by_queue:
        return min(width, rows + in_memory), ["queue"]
    if criteria.completed or criteria.live:
        total = sum(queue.completed + queue.failed for queue in state.queues.values()) + len(state.jobs)
        return min(width, total), []
    return min(width, rows + in_memory), ["state"]
