"""How far a stream has come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bunqueue.spark.read.event_rows import Bounds
from bunqueue.spark.read.folders import Shard
from bunqueue.spark.read.offsets import key_of, limited, lost_events, reached, resharded, went_back

NUMBERS = st.dictionaries(st.sampled_from(["00", "01", "02", "03"]), st.integers(0, 5000))


@given(start=NUMBERS, latest=NUMBERS, most=st.integers(1, 4000))
def test_a_batch_goes_on_never_back_and_not_too_far(
    start: dict[str, int], latest: dict[str, int], most: int
) -> None:
    end = limited(start, latest, most)
    taken = {key: end[key] - start.get(key, 0) for key in latest}
    assert all(count >= 0 for count in taken.values())
    assert all(end[key] <= max(latest[key], start.get(key, 0)) for key in latest)
    assert sum(taken.values()) <= max(most, len(latest)), "each shard goes on by one at least"
    behind = sum(max(0, last - start.get(key, 0)) for key, last in latest.items())
    assert sum(taken.values()) >= min(behind, most), "nothing is held back without need"


def test_shards_that_are_far_behind_have_the_same_share() -> None:
    assert limited({}, {"00": 1000, "01": 10, "02": 1000}, 110) == {"00": 50, "01": 10, "02": 50}


def test_what_retention_has_passed_is_lost() -> None:
    found = {"00": Bounds(100, 200), "01": Bounds(1, 50), "02": Bounds(101, 100)}
    assert lost_events({"00": 99, "01": 50, "02": 100}, found) == []
    (gone,) = lost_events({"00": 98, "01": 50, "02": 100}, found)
    assert gone == "events 99 to 99 of shard 00 are gone, as retention has passed them"
    assert reached({"00": 5, "01": 20}, found) == {"00": 99, "01": 20, "02": 100}


def test_a_log_that_is_shorter_than_what_was_read() -> None:
    found = {"00": Bounds(100, 200), "01": Bounds(1, 50)}
    assert went_back({"00": 200, "01": 50}, found) is None
    assert went_back({}, found) is None
    text = went_back({"00": 200, "01": 51}, found)
    assert text == "shard 01 ends at event 50, before 51, which was read; was it restored?"


def test_a_machine_that_is_new_to_a_stream_lacks_nothing() -> None:
    assert lost_events({"a/00": 7}, {"a/00": Bounds(1, 7), "b/00": Bounds(100, 200)}) == []
    assert resharded({"a/00": 7}, {"a/00": 0, "b/00": 0, "b/01": 0}) is None


def test_another_number_of_shards_is_another_stream() -> None:
    assert resharded({"00": 7, "01": 8}, {"00": 0, "01": 0}) is None
    text = resharded({"a/00": 7, "a/01": 8}, {"a/00": 0})
    assert text == "the data folder of a has 1 shards, and had 2 when the stream began"


def test_keys() -> None:
    shard = Shard("web-1", 3, "/data/shard-03.db")
    assert key_of(shard, False) == "03"
    assert key_of(shard, True) == "web-1/03"
