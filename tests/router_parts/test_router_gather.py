"""Cutting a command into parts and making one answer of several."""

from __future__ import annotations

from typing import Annotated, Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from bunqueue.protocol.codec import decode_command
from bunqueue.protocol.commands import COMMANDS, Command, CommandError, Merge, Reply
from bunqueue.protocol.commands.base import LARGEST, SMALLEST
from bunqueue.protocol.framing import MAX_FRAME
from bunqueue.server.links.gather import Gather, for_all, split


def command(**fields: object) -> Command:
    return decode_command(bytes(msgpack.packb(fields)))


def unpacked(frame: bytes) -> dict[str, Any]:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return dict(msgpack.unpackb(frame[4:]))


def reply(**fields: object) -> bytes:
    payload = msgpack.packb(fields)
    return len(payload).to_bytes(4, "big") + payload


def parity(job_id: str) -> int:
    return int(job_id) & 1


def merged(
    name: str, answers: dict[int, bytes], ids: list[str] | None = None, req_id: Any = UNSET
) -> dict[str, Any]:
    """The one answer to a command whose parts have these answers."""
    ids = ids or []
    spec = COMMANDS[name]
    if ids:
        parts = split(spec, command(cmd=name, ids=ids), parity)
    else:
        parts = for_all(command(cmd=name), len(answers))
    gather = Gather(spec.merge, parts, ids, reply=spec.reply)
    for shard, answer in answers.items():
        assert gather.waiting
        gather.add(shard, answer)
    assert not gather.waiting
    return unpacked(gather.result(req_id))


# Parts


def test_each_shard_gets_its_ids_and_what_belongs_to_them() -> None:
    whole = command(
        cmd="ACKB", ids=["1", "2", "3"], tokens=["t1", None, "t3"], results=[{"r": 1}, 2, None], reqId=9
    )
    parts = split(COMMANDS["ACKB"], whole, parity)
    assert unpacked(parts[1].frame) == {
        "cmd": "ACKB",
        "ids": ["1", "3"],
        "tokens": ["t1", "t3"],
        "results": [{"r": 1}, None],
    }
    assert unpacked(parts[0].frame) == {"cmd": "ACKB", "ids": ["2"], "tokens": [None], "results": [2]}
    assert list(parts[1].places) == [0, 2]
    assert list(parts[0].places) == [1]


def test_what_is_absent_stays_absent() -> None:
    parts = split(COMMANDS["JobHeartbeatB"], command(cmd="JobHeartbeatB", ids=["1", "2"]), parity)
    assert unpacked(parts[0].frame) in (
        {"cmd": "JobHeartbeatB", "ids": ["2"]},
        {"cmd": "JobHeartbeatB", "ids": ["2"], "tokens": None},
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"cmd": "ACKB", "results": [1]}, "ACKB results length must match ids length"),
        ({"cmd": "ACKB", "tokens": ["t"] * 3}, "ACKB tokens length must match ids length"),
        ({"cmd": "ACKB", "tokens": [], "results": []}, "ACKB results length must match ids length"),
        ({"cmd": "JobHeartbeatB", "tokens": ["t"]}, "JobHeartbeatB tokens length must match ids length"),
    ],
)
def test_lists_of_another_length_are_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(CommandError) as error:
        split(COMMANDS[fields["cmd"]], command(ids=["1", "2"], **fields), parity)
    assert str(error.value) == text


@given(st.lists(st.integers(0, 99).map(str), min_size=1), st.integers(1, 8))
def test_parts_hold_every_id_once_in_order(ids: list[str], shards: int) -> None:
    parts = split(COMMANDS["ACKB"], command(cmd="ACKB", ids=ids), lambda job_id: int(job_id) % shards)
    found = {
        place: job_id
        for part in parts.values()
        for place, job_id in zip(part.places, unpacked(part.frame)["ids"], strict=True)
    }
    assert [found[place] for place in range(len(ids))] == ids
    assert all(list(part.places) == sorted(part.places) for part in parts.values())


def test_all_shards_are_asked_the_same_without_the_request_id() -> None:
    parts = for_all(command(cmd="Stats", reqId="r"), 4)
    assert set(parts) == {0, 1, 2, 3}
    assert all(unpacked(part.frame) == {"cmd": "Stats"} for part in parts.values())


# Answers


def test_the_request_id_comes_back_as_it_came() -> None:
    assert merged("ListQueues", {0: reply(ok=True, queues=[])}) == {"ok": True, "queues": []}
    answer = merged("ListQueues", {0: reply(ok=True, queues=[])}, req_id=Raw(msgpack.packb([1, None])))
    assert answer == {"ok": True, "queues": [], "reqId": [1, None]}


def test_ok_comes_first() -> None:
    gather = Gather(Merge.SUM, for_all(command(cmd="Stats"), 1))
    gather.add(0, reply(ok=True, stats={"waiting": 1}))
    assert gather.result(UNSET)[4:].startswith(b"\x82\xa2ok\xc3")


def test_lists_are_joined_in_the_order_of_the_shards() -> None:
    answers = {1: reply(ok=True, queues=["b"]), 0: reply(ok=True, queues=["a"]), 2: reply(ok=True, queues=[])}
    assert merged("ListQueues", answers) == {"ok": True, "queues": ["a", "b"]}


def test_numbers_are_added_up_but_the_uptime_is_the_longest() -> None:
    answers = {
        0: reply(ok=True, stats={"waiting": 1, "uptime": 10.0, "pushPerSec": 0.5}),
        1: reply(ok=True, stats={"waiting": 2, "uptime": 30.0, "pushPerSec": 1.0}),
    }
    assert merged("Stats", answers) == {
        "ok": True,
        "stats": {"waiting": 3, "uptime": 30.0, "pushPerSec": 1.5},
    }


def test_sums_beyond_32_bits_are_sent_as_floats() -> None:
    answer = merged("Stats", {n: reply(ok=True, stats={"completed": 2**31 - 1}) for n in range(2)})
    assert answer["stats"]["completed"] == 2**32 - 2
    assert isinstance(answer["stats"]["completed"], float)


def test_counts_are_added_up() -> None:
    answers = {n: reply(ok=True, data={"ok": True, "count": n + 1}) for n in range(2)}
    assert merged("JobHeartbeatB", answers, ["1", "2"]) == {"ok": True, "data": {"ok": True, "count": 3}}


def test_a_batch_that_counted_has_no_data() -> None:
    assert merged("ACKB", {0: reply(ok=True), 1: reply(ok=True)}, ["1", "2"]) == {"ok": True}


def test_what_came_too_late_is_named_by_its_place_in_the_whole() -> None:
    answers = {
        0: reply(ok=True, data={"ignoredIds": ["4"], "ignoredIndices": [1]}),
        1: reply(ok=True, data={"ignoredIds": ["1", "5"], "ignoredIndices": [0, 2]}),
    }
    assert merged("ACKB", answers, ["1", "2", "3", "4", "5"]) == {
        "ok": True,
        "data": {"ignoredIds": ["1", "4", "5"], "ignoredIndices": [0, 3, 4]},
    }


def test_the_error_about_the_earlier_id_is_the_answer() -> None:
    answers = {
        0: reply(ok=False, error="Invalid or expired lock token for job 2"),
        1: reply(ok=False, error="Job not found or not in processing state: 5"),
    }
    assert merged("ACKB", answers, ["1", "2", "3", "4", "5"])["error"].endswith("job 2")
    assert merged("ACKB", answers, ["1", "5", "3", "4", "2"])["error"].endswith(": 5")


def test_an_error_that_names_no_job_stands_for_the_first_of_its_shard() -> None:
    answers = {
        0: reply(ok=False, error="Job not found or not in processing state: 4"),
        1: reply(ok=False, error="disk full"),
    }
    assert merged("ACKB", answers, ["2", "3", "4"])["error"] == "disk full"
    assert merged("ACKB", answers, ["4", "2", "3"])["error"].endswith(": 4")


def test_one_error_is_enough() -> None:
    answers = {0: reply(ok=True, data={"ok": True, "count": 1}), 1: reply(ok=False, error="no")}
    assert merged("JobHeartbeatB", answers, ["1", "2"], req_id=Raw(b"\x05")) == {
        "ok": False,
        "error": "no",
        "reqId": 5,
    }
    answers = {0: reply(ok=False, error="no"), 1: reply(ok=True, queues=["a"])}
    assert merged("ListQueues", answers) == {"ok": False, "error": "no"}


def test_every_merge_of_the_table_is_known() -> None:
    for spec in COMMANDS.values():
        if spec.merge is not Merge.NONE:
            Gather(spec.merge, {})


# Sums


def test_numbers_are_added_at_every_depth_and_lists_joined() -> None:
    first = reply(ok=True, data={"stats": {"waiting": 1, "uptime": 5}, "crons": ["a"], "timestamp": 7})
    other = reply(ok=True, data={"stats": {"waiting": 2, "uptime": 3}, "crons": ["b", "c"], "timestamp": 9})
    assert merged("DashboardOverview", {0: first, 1: other}) == {
        "ok": True,
        "data": {"stats": {"waiting": 3, "uptime": 5}, "crons": ["a", "b", "c"], "timestamp": 9},
    }


class Depths(Reply, kw_only=True):
    depth: Annotated[int, LARGEST]
    floor: Annotated[int, SMALLEST]
    uptime: int


def test_a_field_says_how_its_numbers_are_merged_whatever_its_name() -> None:
    gather = Gather(Merge.SUM, for_all(command(cmd="Stats"), 2), reply=Depths)
    gather.add(0, reply(ok=True, depth=3, floor=3, uptime=3))
    gather.add(1, reply(ok=True, depth=5, floor=5, uptime=5))
    assert unpacked(gather.result(UNSET)) == {"ok": True, "depth": 5, "floor": 3, "uptime": 8}


def test_averages_weigh_as_many_attempts_as_they_are_of() -> None:
    def shard(attempts: int, latency: float) -> bytes:
        return reply(ok=True, metrics={"totalAttempts": attempts, "avgLatencyMs": latency})

    found = merged("Metrics", {0: shard(3, 10.0), 1: shard(1, 50.0)})
    assert found["metrics"] == {"totalAttempts": 4, "avgLatencyMs": 20.0}
    assert merged("Metrics", {0: shard(0, 0.0), 1: shard(0, 0.0)})["metrics"]["avgLatencyMs"] == 0


def test_one_shard_in_trouble_is_told_with_its_reason() -> None:
    fine = reply(ok=True, data={"diskFull": False, "error": None, "since": None})
    full = reply(ok=True, data={"diskFull": True, "error": "full", "since": 8.0})
    later = reply(ok=True, data={"diskFull": True, "error": "also full", "since": 9.0})
    told = {"ok": True, "data": {"diskFull": True, "error": "full", "since": 8.0}}
    assert merged("StorageStatus", {0: fine, 1: full}) == told
    assert merged("StorageStatus", {0: full, 1: fine, 2: later}) == told
    assert merged("StorageStatus", {0: fine, 1: fine})["data"]["diskFull"] is False


def test_what_the_router_knows_is_put_into_the_merged_answer() -> None:
    gather = Gather(Merge.SUM, for_all(command(cmd="Metrics"), 1), add=lambda answer: answer.update(own=1))
    gather.add(0, reply(ok=True, metrics={}))
    assert unpacked(gather.result(UNSET)) == {"ok": True, "metrics": {}, "own": 1}
    gather = Gather(Merge.SUM, for_all(command(cmd="Metrics"), 1), add=lambda answer: answer.update(own=1))
    gather.add(0, reply(ok=False, error="no"))
    assert unpacked(gather.result(UNSET)) == {"ok": False, "error": "no"}


def test_sorted_lists_are_by_name() -> None:
    answers = {
        1: reply(ok=True, crons=[{"name": "a"}, {"name": "d"}]),
        0: reply(ok=True, crons=[{"name": "B"}, {"name": "c"}]),
    }
    names = [cron["name"] for cron in merged("CronList", answers)["crons"]]
    assert names == ["B", "a", "c", "d"]


def test_any_ok_is_enough() -> None:
    answers = {0: reply(ok=False, error="not here"), 1: reply(ok=True, cron=1)}
    assert merged_for("CronGet", answers, name="c") == {"ok": True, "cron": 1}
    answers = {0: reply(ok=False, error="first"), 1: reply(ok=False, error="second")}
    assert merged_for("CronGet", answers, name="c") == {"ok": False, "error": "first"}


def merged_for(cmd: str, answers: dict[int, bytes], **fields: object) -> dict[str, Any]:
    """`merged` for a command of all shards that has fields."""
    spec = COMMANDS[cmd]
    gather = Gather(spec.merge, for_all(command(cmd=cmd, **fields), len(answers)), reply=spec.reply)
    for shard, answer in answers.items():
        gather.add(shard, answer)
    return unpacked(gather.result(UNSET))


@pytest.mark.parametrize("lengths", [(0, 15), (15, 1), (16, 0), (3, 70_000), (65_536, 65_535)])
def test_long_lists_are_joined(lengths: tuple[int, int]) -> None:
    lists = [[f"queue-{shard}-{number}" for number in range(length)] for shard, length in enumerate(lengths)]
    answers = {shard: reply(ok=True, queues=names) for shard, names in enumerate(lists)}
    assert merged("ListQueues", answers, req_id=Raw(b"\x07")) == {
        "ok": True,
        "queues": lists[0] + lists[1],
        "reqId": 7,
    }


def test_the_entries_of_long_lists_are_not_looked_at() -> None:
    """They may be many; so even what is no MessagePack inside an entry's text gets through."""
    broken = b"\xa1\xff"  # a text that is not UTF-8
    payload = b"\x82\xa2ok\xc3\xa6queues\x91" + broken
    answer = len(payload).to_bytes(4, "big") + payload
    gather = Gather(Merge.CONCAT, for_all(command(cmd="ListQueues"), 2))
    gather.add(0, answer)
    gather.add(1, answer)
    assert gather.result(UNSET).endswith(b"\xdd\x00\x00\x00\x02" + broken + broken)


def test_an_answer_that_does_not_fit_into_a_frame_is_an_error() -> None:
    answer = reply(ok=True, queues=["x" * (MAX_FRAME // 2)])
    found = merged("ListQueues", {0: answer, 1: answer}, req_id=Raw(b"\x07"))
    assert found["reqId"] == 7
    assert "does not fit into a frame" in found["error"]
