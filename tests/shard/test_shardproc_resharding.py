"""Which queue, record and event goes where; that no table and no kind of record is forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import msgpack
import pytest
from engine.shard_driver import Driver
from hypothesis import given
from hypothesis import strategies as st
from support.naming import shard_of

from bunqueue.model.ids import slot_of_id, slot_of_queue
from shardproc.engine.all_handlers import RECORDS
from shardproc.engine.registry import Apart
from shardproc.resharding import build, event_logs, plan, records
from shardproc.resharding.errors import ReshardError
from shardproc.storage import transfer
from shardproc.storage.schema import TABLES
from shardproc.storage.transfer import QueueSize

POWERS = [1 << bits for bits in range(7)]
numbers = st.sampled_from(POWERS)


COLUMNS = {
    "queues": {"id", "name", "created_at", "completed", "failed"},
    "records": {"kind", "key", "value"},
    "events": {"first_seq", "at", "count", "payload", "pushed"},
    "broadcasts": {"id", "name", "key", "at", "expires_at", "delivered", "data"},
    "meta": {"key", "value"},
}


def test_every_column_is_taken_care_of() -> None:
    """Those of jobs are copied whatever they are; others concern more than one queue or shard."""
    assert set(COLUMNS) == {table.name for table in TABLES if table.of != "job" and not table.is_derived}
    driver = Driver()
    for table, columns in COLUMNS.items():
        assert {name for (name,) in driver.rows("select name from pragma_table_info(?)", table)} == columns
    assert {key for (key,) in driver.rows("select key from meta")} <= {"epoch", "live_from"}
    driver.close()


def test_every_kind_of_record_says_where_it_belongs() -> None:
    apart = {kind for kind, record in RECORDS.items() if isinstance(record.slot, Apart)}
    settling = {"flow", "flow_part", "call", "called", "move", "moved_in"}
    assert apart == {"home", "recovery", *settling}


@given(st.text(min_size=1, max_size=20), numbers, numbers)
def test_a_queue_stays_in_its_family(queue: str, old: int, new: int) -> None:
    source, target = shard_of(queue, old), plan.shard_of(queue, new)
    (family,) = [family for family in plan.families(old, new) if source in family.sources]
    assert target in family.targets


@given(numbers, numbers)
def test_every_shard_is_in_one_family(old: int, new: int) -> None:
    families = plan.families(old, new)
    assert sorted(number for family in families for number in family.sources) == [*range(old)]
    assert sorted(number for family in families for number in family.targets) == [*range(new)]
    assert all(min(len(family.sources), len(family.targets)) == 1 for family in families)


def test_shares_add_up() -> None:
    held = [[QueueSize(1, f"q-{shard}-{n}", 0, 10, 100) for n in range(5)] for shard in range(2)]
    shares = plan.shares(held, 4)
    assert sum(share.queues for share in shares) == 10
    assert sum(share.jobs for share in shares) == 100
    assert sum(share.bytes for share in shares) == 1000
    moved = [
        queue for shard, queues in enumerate(held) for queue in queues if shard_of(queue.name, 4) != shard
    ]
    assert sum(share.moved_queues for share in shares) == len(moved)
    assert sum(share.moved_bytes for share in shares) == 100 * len(moved)


# Records

QUEUE = "some.queue"
PLACES = [
    ("pause", QUEUE, "{}", slot_of_queue(QUEUE)),
    ("limits", QUEUE, "{}", slot_of_queue(QUEUE)),
    ("dlq", QUEUE, "{}", slot_of_queue(QUEUE)),
    ("stall", QUEUE, "{}", slot_of_queue(QUEUE)),
    ("group", f"{QUEUE}/a/b", "{}", slot_of_queue(QUEUE)),
    ("cron", "x", '{"name":"x","queue":"some.queue","nextRun":1}', slot_of_queue(QUEUE)),
    ("webhook", "id", "{}", 0),
    ("gone", "my-id", "{}", slot_of_queue("my-id")),
    ("gone", "01a1feca-48b5-7c98-8cb6-000000000009", "{}", 0xC98),
]


@pytest.mark.parametrize(("kind", "key", "value", "slot"), PLACES)
@pytest.mark.parametrize("new", [1, 4, 64])
def test_where_a_record_goes(kind: str, key: str, value: str, slot: int, new: int) -> None:
    placing = records.Placing(2, new)
    placing.add(1, (kind, key, value))
    found = placing.records()
    assert found[slot & (new - 1)] == [(kind, key, value)]
    assert sum(map(len, found)) == 1


def test_the_directory_is_made_anew() -> None:
    placing = records.Placing(2, 4)
    placing.add(1, ("home", "x", '{"shard":1}'))
    assert placing.records() == [[], [], [], []]
    ids = [(f"id-{number}", number % 4) for number in range(100)]
    found = dict(ids)
    for pointer, (kind, job_id, value) in records.entries(ids, 4):
        assert kind == "home"
        assert pointer == slot_of_id(job_id) & 3 != found[job_id]
        assert value == f'{{"shard":{found.pop(job_id)}}}'
    assert all(slot_of_id(job_id) & 3 == home for job_id, home in found.items())


def test_flows_are_counted_once() -> None:
    placing = records.Placing(2, 4)
    for source, kind, flow in ((0, "flow", "f"), (1, "flow_part", "f"), (1, "flow_part", "g")):
        placing.add(source, (kind, flow, "not looked at"))
    with pytest.raises(ReshardError, match=r"^2 flow\(s\) were being pushed"):
        placing.records()


def test_jobs_for_dead_letters_that_are_on_their_way() -> None:
    placing = records.Placing(2, 4)
    placing.add(0, ("called", "1/a", "not looked at"))
    assert placing.records() == [[], [], [], []]
    placing.add(0, ("call", "1/b", "not looked at"))
    with pytest.raises(ReshardError, match=r"^1 job\(s\) were being pushed"):
        placing.records()


# Event logs: the queues of a source have the numbers 1 to 6, and 6 is the number of one that is gone

NAMES = [f"q-{number}" for number in range(5)]
entries = st.none() | st.tuples(st.integers(0, 3), st.integers(1, 6), st.just("id"))
pushes = st.none() | st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 9)), max_size=3)
batches = st.lists(
    st.tuples(
        st.integers(1, 5), st.lists(entries, min_size=1, max_size=4), pushes
    ),  # ms since the one before
    max_size=8,
)
Batches = list[tuple[int, list[Any], list[tuple[str, int]] | None]]
Rows = list[transfer.EventRow]


def rows_of(log: Batches, first: int = 1) -> Iterator[transfer.EventRow]:
    """A log as it is stored."""
    times = accumulate(ms for ms, _, _ in log)
    for at, (_, events, pushed) in zip(times, log, strict=True):
        stored = (
            None if pushed is None else msgpack.packb([(f"{queue} {key}", "id") for queue, key in pushed])
        )
        yield first, at, len(events), msgpack.packb(events), stored
        first += len(events)


def events_of(rows: Rows) -> dict[int, tuple[int, list[Any]]]:
    """By number."""
    found = {}
    for first_seq, at, count, payload, _ in rows:
        events = msgpack.unpackb(payload)
        assert len(events) == count
        found.update({first_seq + n: (at, event) for n, event in enumerate(events) if event is not None})
    return found


def pushed_of(rows: Rows) -> list[tuple[int, str]]:
    """Times and keys, in order."""
    return [
        (at, key) for _, at, _, _, pushed in rows if pushed is not None for key, _ in msgpack.unpackb(pushed)
    ]


def known_from(rows: Rows) -> int:
    """Since when all pushes are known, as a start finds it; 0: for ever."""
    for _, at, _, _, pushed in reversed(rows):
        if pushed is not None and not msgpack.unpackb(pushed):
            return at
    return rows[0][1] if rows and rows[0][0] > 1 else 0


def shared_out(logs_: list[Rows], family: plan.Family, new: int, first: int | None) -> dict[int, Rows]:
    """The rows of each target."""
    places = plan.QueueNumbers(family)
    for source in family.sources:
        for number, name in enumerate(NAMES, 1):
            places.enter(source, number, shard_of(name, new))
    found: dict[int, Rows] = {target: [] for target in family.targets}
    read = [event_logs.read(source, iter(log)) for source, log in zip(family.sources, logs_, strict=True)]
    for target, row in event_logs.shared_out(read, places, family, new, first):
        found[target].append(row)
    for rows in found.values():
        assert [row[0] for row in rows] == sorted({row[0] for row in rows}), "numbers ascend"
    return found


@given(batches, st.integers(1, 50))
def test_a_log_is_split(log: Batches, first: int) -> None:
    rows = [*rows_of(log, first)]
    found = shared_out([rows], plan.Family(range(1), range(4)), 4, None)
    whole, parts = events_of(rows), {target: events_of(rows) for target, rows in found.items()}
    assert whole == parts[0] | parts[1] | parts[2] | parts[3], "under its old number"
    assert sum(map(len, parts.values())) == len(whole)
    homes = [*(shard_of(name, 4) for name in NAMES), 0]
    for target, part in parts.items():
        assert all(homes[event[1] - 1] == target for _, event in part.values())
    ends = {rows[-1][0] + rows[-1][2] for rows in found.values() if rows}
    assert ends <= {first + sum(len(events) for _, events, _ in log)}, "all go on after the same number"
    assert bool(log) == bool(ends)
    for target, some in found.items():
        mine = [(at, key) for at, key in pushed_of(rows) if shard_of(key.split()[0], 4) == target]
        assert pushed_of(some) == mine
        assert known_from(some) == known_from(rows)


@given(st.lists(st.tuples(batches, st.integers(1, 9)), min_size=2, max_size=4))
def test_logs_are_merged(logs_: list[tuple[Batches, int]]) -> None:
    sources = [[*rows_of(log, begin)] for log, begin in logs_]
    first = max(rows[-1][0] + rows[-1][2] if rows else 1 for rows in sources)
    (rows,) = shared_out(sources, plan.Family(range(len(sources)), range(1)), 1, first).values()
    merged = events_of(rows)
    assert all(number >= first for number in merged), "nobody takes a new event for an old one"
    times = [at for at, _ in merged.values()]
    assert times == sorted(times)
    assert Counter(at for source in sources for at, _ in events_of(source).values()) == Counter(times)
    assert any(map(bool, sources)) == bool(rows)
    last = max((source[-1][1] for source in sources if source), default=0)
    assert not rows or rows[-1][1] == last

    # Of pushes, none is taken for new that was there; those that are lost are known to be.
    since = known_from(rows)
    assert since >= max(map(known_from, sources))
    wanted = Counter(push for source in sources for push in pushed_of(source) if push[0] > since)
    assert wanted == Counter(push for push in pushed_of(rows) if push[0] > since)


def test_a_queue_that_is_gone_keeps_its_events_together() -> None:
    growing = plan.QueueNumbers(plan.Family(range(1, 2), range(1, 4, 2)))
    assert growing.enter(1, 7, 3) == 7
    assert [growing.of(1, number) for number in (7, 8, 8)] == [(3, 7), (1, 8), (1, 8)]
    shrinking = plan.QueueNumbers(plan.Family(range(1, 4, 2), range(1, 2)))
    assert [shrinking.enter(source, 7, 1) for source in (3, 1)] == [1, 2]
    assert [shrinking.of(source, 7) for source in (3, 1)] == [(1, 1), (1, 2)]
    assert [shrinking.of(source, 8) for source in (3, 1, 3)] == [(1, 3), (1, 4), (1, 3)]


def test_shards_are_named_as_people_would() -> None:
    assert build._named([1]) == "shard 1"
    assert build._named([0, 1, 2]) == "shards 0 to 2"
