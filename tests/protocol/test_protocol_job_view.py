"""The job object: the fast encoding equals the general one, and every field is always there."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgpack
import msgspec
import pytest

from bunqueue.model.job import (
    ACTIVE,
    COMPLETED,
    DELAYED,
    FAILED,
    MAX_TIMELINE,
    NIL,
    WAITING,
    Job,
    JobOptions,
    Lock,
    Moment,
)
from bunqueue.protocol import job_view
from bunqueue.protocol.job_view import (
    DEFAULT_OPTIONS,
    job_list,
    pulled_job,
    queried_job,
    share_options,
    state_name,
    stored_options,
)

NOW = 1_700_000_000_000
ID = "018bcfe5-6800-725c-8aaa-000000000001"

# the reference server, "Job object": the fields and their defaults; those of a job that was just pushed.
DEFAULTS: dict[str, Any] = {
    "id": ID,
    "queue": "q",
    "name": "default",
    "data": None,
    "priority": 0,
    "createdAt": NOW,
    "runAt": NOW,
    "startedAt": None,
    "completedAt": None,
    "attempts": 0,
    "maxAttempts": 3,
    "backoff": 1000,
    "backoffConfig": None,
    "stallCount": 0,
    "stackTraceLimit": 10,
    "failParentOnFailure": False,
    "removeDependencyOnFailure": False,
    "continueParentOnFailure": False,
    "ignoreDependencyOnFailure": False,
    "timeline": [{"state": "waiting", "timestamp": NOW}],
    "ttl": None,
    "timeout": None,
    "uniqueKey": None,
    "customId": None,
    "parentId": None,
    "groupId": None,
    "dependsOn": [],
    "childrenIds": [],
    "tags": [],
    "childrenCompleted": 0,
    "progress": 0,
    "progressMessage": None,
    "removeOnComplete": False,
    "removeOnFail": False,
    "lifo": False,
    "durable": False,
    "repeat": None,
    "lastHeartbeat": NOW,
    "stallTimeout": None,
    "keepLogs": None,
    "sizeLimit": None,
    "stacktrace": None,
    "deduplicationTtl": None,
    "debounceId": None,
    "debounceTtl": None,
    "deduplicationExtend": False,
    "deduplicationReplace": False,
}
TIMES = {"createdAt", "runAt", "startedAt", "completedAt", "lastHeartbeat"}


def make(**changes: Any) -> Job:
    fields: dict[str, Any] = {
        "seq": 1,
        "id": ID,
        "queue": "q",
        "name": "default",
        "data": NIL,
        "shared": DEFAULT_OPTIONS,
        "priority": 0,
        "created_at": NOW,
        "run_at": NOW,
    }
    return Job(**{**fields, **changes})


def active(**changes: Any) -> Job:
    lock = Lock("token", "owner", 30_000, NOW + 30_005, 1, NOW + 5)
    return make(**{"state": ACTIVE, "started_at": NOW + 5, "lock": lock, **changes})


def read(encoded: bytes) -> dict[str, Any]:
    """As a client reads it: an ordinary map without a key twice."""
    pairs = msgpack.unpackb(encoded, object_pairs_hook=list, strict_map_key=False)
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names))
    found = msgpack.unpackb(encoded, strict_map_key=False)
    assert isinstance(found, dict)
    return found


def generally(job: Job) -> bytes:
    """The encoding that `_first_run` is a shortcut of."""
    return job_view._assemble(msgspec.msgpack.encode(job_view._own(job)), job_view._OWN_FIELDS, job)


# -- every field is there --------------------------------------------------------------------------


def test_a_new_job_has_every_field_with_its_default() -> None:
    assert read(pulled_job(make())) == DEFAULTS


@pytest.mark.parametrize(
    "job",
    [
        make(),
        active(),
        make(state=DELAYED, run_at=NOW + 5),
        make(state=COMPLETED, started_at=NOW + 1, finished_at=NOW + 2, result=msgpack.packb([1])),
        make(state=FAILED, started_at=NOW + 1, finished_at=NOW + 2, attempts=3, error="e", reason="timeout"),
        make(timeline=[], unique_key="k", priority=-3, progress=12.5, progress_message="m"),
        active(attempts=2, stalls=1, timeline=[Moment("waiting", NOW)]),
        make(
            shared=share_options(JobOptions(5, 10.0, "fixed", True, 1.5, 2.5, True, True, True, True, ("a",)))
        ),
    ],
    ids=["waiting", "active", "delayed", "completed", "failed", "odd", "retried", "options"],
)
def test_every_field_is_always_there(job: Job) -> None:
    pulled, queried = read(pulled_job(job)), read(queried_job(job, state_name(job, 2)))
    assert pulled.keys() == DEFAULTS.keys()
    assert queried.keys() >= DEFAULTS.keys() | {"state"}
    assert queried.keys() - DEFAULTS.keys() <= {"state", "returnvalue", "failedReason"}
    assert {name: queried[name] for name in pulled} == pulled
    for name in TIMES:
        assert pulled[name] is None or type(pulled[name]) is float, f"{name}: timestamps are float64"
    assert all(type(moment["timestamp"]) is float for moment in pulled["timeline"])


def test_options_are_shown() -> None:
    options = JobOptions(7, 250.0, "fixed", True, 60_000.0, 5.0, True, True, True, True, ("x", "y"))
    found = read(pulled_job(make(shared=share_options(options))))
    shown = {
        "maxAttempts": 7,
        "backoff": 250,
        "backoffConfig": {"type": "fixed", "delay": 250},
        "ttl": 60_000,
        "timeout": 5,
        "lifo": True,
        "removeOnComplete": True,
        "removeOnFail": True,
        "durable": True,
        "tags": ["x", "y"],
    }
    assert found == DEFAULTS | shown


def test_own_values_are_shown() -> None:
    job = active(
        name="resize",
        queue="a.b",
        data=msgpack.packb({"x": [1, None]}),
        priority=-7,
        run_at=NOW + 2,
        attempts=1,
        stalls=2,
        unique_key="k",
        progress=12.5,
        progress_message="m",
    )
    found = read(pulled_job(job))
    shown = {
        "name": "resize",
        "queue": "a.b",
        "data": {"x": [1, None]},
        "priority": -7,
        "runAt": NOW + 2,
        "startedAt": NOW + 5,
        "lastHeartbeat": NOW + 5,
        "attempts": 1,
        "stallCount": 2,
        "uniqueKey": "k",
        "progress": 12.5,
        "progressMessage": "m",
        "timeline": [{"state": "delayed", "timestamp": NOW}, {"state": "active", "timestamp": NOW + 5}],
    }
    assert found == DEFAULTS | shown


def test_completed_at_is_for_completed_jobs_only() -> None:
    done = make(state=COMPLETED, started_at=NOW + 1, finished_at=NOW + 2)
    dead = make(state=FAILED, started_at=NOW + 1, finished_at=NOW + 2)
    assert read(pulled_job(done))["completedAt"] == NOW + 2
    assert read(pulled_job(dead))["completedAt"] is None


@pytest.mark.parametrize("result", [None, False, 0, "", [], {"a": 1}])
def test_the_outcome_of_a_completed_job(result: Any) -> None:
    job = make(state=COMPLETED, started_at=NOW, finished_at=NOW, result=msgpack.packb(result))
    found = read(queried_job(job, "completed"))
    assert found["returnvalue"] == result
    assert "failedReason" not in found


def test_the_outcome_of_a_failed_job() -> None:
    job = make(state=FAILED, finished_at=NOW, error="boom", reason="max_attempts_exceeded")
    found = read(queried_job(job, "failed"))
    assert (found["state"], found["failedReason"]) == ("failed", "boom")
    assert "returnvalue" not in found


def test_no_outcome_no_field() -> None:
    found = read(queried_job(make(), "waiting"))
    assert found == DEFAULTS | {"state": "waiting"}


# -- the fast encoding -----------------------------------------------------------------------------

FAST = [
    active(),
    active(started_at=NOW, lock=Lock("", "", 1, NOW, 1, NOW)),
    active(data=msgpack.packb("x" * 70_000)),
    active(data=msgpack.packb({"deep": [[[{}]]]})),
    active(name="", queue="q" * 256),
    active(name="\N{SNOWMAN}" * 20, queue="a.b-c:d_e"),
    active(name="n" * 31),
    active(name="n" * 32),
    active(name="n" * 70_000),
    active(shared=share_options(JobOptions(max_attempts=1000, tags=("a", "b"), ttl=1.0))),
    active(created_at=1, run_at=1),
    active(created_at=2**53, run_at=2**53),
]


@pytest.mark.parametrize("job", FAST, ids=range(len(FAST)))
def test_the_fast_encoding_equals_the_general_one(job: Job) -> None:
    assert job_view._is_first_run(job)
    fast = pulled_job(job)
    assert fast == job_view._first_run(job)
    assert read(fast) == read(generally(job))
    order = [name for name, _ in msgpack.unpackb(fast, object_pairs_hook=list)]
    assert sorted(order) == sorted(DEFAULTS)


def test_the_fast_encoding_has_the_identity_that_added_the_job() -> None:
    job = active(shared=job_view.plain_options("shop"))
    assert job_view._is_first_run(job)
    assert read(pulled_job(job)) == read(generally(job))
    assert msgpack.unpackb(pulled_job(job))["addedBy"] == "shop"


@pytest.mark.parametrize(
    "changes",
    [
        {"state": WAITING},
        {"timeline": [Moment("waiting", NOW)]},
        {"priority": 1},
        {"priority": -1},
        {"unique_key": "k"},
        {"unique_key": ""},
        {"run_at": NOW + 1},
        {"progress": 5},
        {"progress_message": ""},
        {"id": "short"},
    ],
    ids=str,
)
def test_what_is_special_goes_the_general_way(changes: dict[str, Any]) -> None:
    job = active(**changes)
    assert not job_view._is_first_run(job)
    assert pulled_job(job) == generally(job)


def test_lost_attempts_are_never_hidden_by_the_fast_encoding() -> None:
    """Whoever failed or stalled has a timeline, which is what the shortcut looks at."""
    job = active(attempts=2, stalls=1, timeline=[Moment("waiting", NOW), Moment("failed", NOW, "e", 2)])
    found = read(pulled_job(job))
    assert (found["attempts"], found["stallCount"]) == (2, 1)


# -- timelines, lists, states ----------------------------------------------------------------------


def test_the_timeline_of_an_ordinary_life_is_told_by_its_times() -> None:
    job = make(state=COMPLETED, started_at=NOW + 1, finished_at=NOW + 2)
    states = [(moment["state"], moment["timestamp"]) for moment in read(pulled_job(job))["timeline"]]
    assert states == [("waiting", NOW), ("active", NOW + 1), ("completed", NOW + 2)]


def test_entries_of_the_timeline() -> None:
    moments = [
        Moment("waiting", NOW),
        Moment("failed", NOW + 1, "boom", 1),
        Moment("waiting", NOW + 1, None, 2),
    ]
    assert read(pulled_job(make(timeline=moments)))["timeline"] == [
        {"state": "waiting", "timestamp": NOW},
        {"state": "failed", "timestamp": NOW + 1, "error": "boom", "attempt": 1},
        {"state": "waiting", "timestamp": NOW + 1, "attempt": 2},
    ]


def test_the_timeline_is_bounded() -> None:
    moments = [Moment("waiting", NOW + number) for number in range(50)]
    assert MAX_TIMELINE == 20
    assert len(read(pulled_job(make(timeline=moments)))["timeline"]) == 20


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000, 65_535, 65_536])
def test_lists_of_any_length(count: int) -> None:
    assert msgpack.unpackb(job_list([b"\x80"] * count)) == [{}] * count


def test_a_list_of_jobs() -> None:
    jobs = [active(), make(), make(priority=5)]
    found = msgpack.unpackb(job_list([pulled_job(job) for job in jobs]))
    assert found == [read(pulled_job(job)) for job in jobs]


@pytest.mark.parametrize(
    ("state", "priority", "two", "three"),
    [
        (WAITING, 1, "waiting", "prioritized"),
        (WAITING, 0, "waiting", "waiting"),
        (WAITING, -1, "waiting", "waiting"),
        (DELAYED, 1, "delayed", "delayed"),
        (ACTIVE, 1, "active", "active"),
        (COMPLETED, 1, "completed", "completed"),
        (FAILED, 1, "failed", "failed"),
    ],
)
def test_states_in_the_words_of_each_version(state: int, priority: int, two: str, three: str) -> None:
    job = make(state=state, priority=priority)
    assert (state_name(job, 2), state_name(job, 3)) == (two, three)


# -- options, stored and shared --------------------------------------------------------------------

SPOTS: dict[str, tuple[Any, ...]] = {
    "max_attempts": (1, 3),
    "backoff": (0.0, 1000, 0.1),
    "backoff_kind": ("fixed", "exponential"),
    "backoff_given_as_map": (True, False),
    "ttl": (None, 0.0, 1e10),
    "timeout": (None, 1.0),
    "lifo": (True, False),
    "remove_on_complete": (True, False),
    "tags": ((), ("a",), ("", "é")),
}


def pieces(wire: bytes) -> list[Any]:
    """The keys and values of an encoded part of a map."""
    unpacker = msgpack.Unpacker()
    unpacker.feed(wire)
    return list(unpacker)


def test_options_survive_storage() -> None:
    for name, values in SPOTS.items():
        for value in values:
            options = JobOptions(**{name: value})
            assert stored_options(share_options(options).stored).options == options


def test_pairs_of_options_survive_storage() -> None:
    for (one, some), (other, more) in itertools.combinations(SPOTS.items(), 2):
        options = JobOptions(**{one: some[0], other: more[-1]})
        shared = share_options(options)
        again = stored_options(shared.stored)
        assert again.options == options
        assert pieces(again.wire) == pieces(shared.wire)


def test_the_defaults_are_stored_as_nothing() -> None:
    assert DEFAULT_OPTIONS.stored is None
    assert share_options(JobOptions()).stored is None
    assert stored_options(None) is DEFAULT_OPTIONS


def test_extreme_numbers() -> None:
    job = make(progress=math.pi, priority=-1_000_000, attempts=1000)
    found = read(pulled_job(job))
    assert (found["progress"], found["priority"], found["attempts"]) == (math.pi, -1_000_000, 1000)
