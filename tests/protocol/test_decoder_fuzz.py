"""Whatever bytes come, decoding gives a command or an InvalidCommand, and the shard gives one answer.

The encoder is the independent `msgpack` package, so the tests do not share the server's mistakes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgpack
import msgspec
import msgspec.inspect as mi
import pytest
from engine.shard_driver import Driver
from hypothesis import assume, example, given, note
from hypothesis import strategies as st
from support.commands import MINIMAL, said
from support.table import table

from bunqueue.protocol.codec import InvalidCommand, decode_command, encode_frame
from bunqueue.protocol.commands import COMMANDS, Command, Route, Spec, is_slow
from bunqueue.protocol.commands.core import AckBatch, Pull, Push
from bunqueue.protocol.measure import MAX_DEPTH
from shardproc.engine.outbox import Outbox
from shardproc.engine.state import Client

pack = msgpack.packb

# Exceptions that are known to leave the decoder or the engine, and would end the shard process: none.  Should
# there be one that cannot be mended at once, it goes here, and a strict xfail that shows it to the end.
DECODER_BUGS: tuple[type[Exception], ...] = ()
ENGINE_BUGS: tuple[type[Exception], ...] = ()

# -- what to send ------------------------------------------------------------------------------------------

ints = st.integers(-(2**63), 2**64 - 1)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    ints,
    st.integers(-3, 70_000),
    st.floats(),
    st.text(max_size=12),
    st.binary(max_size=12),
    st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=9)),
    st.builds(msgpack.Timestamp, st.integers(-(2**40), 2**40), st.integers(0, 999_999_999)),
    st.just(msgpack.ExtType(0, b"\0")),  # what msgpackr sends for undefined
)
keys = st.one_of(st.text(max_size=8), ints, st.binary(max_size=8), st.booleans(), st.none(), st.floats())
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=5),
    max_leaves=12,
)

# Names that the shard test replaces by the ids and tokens of its jobs.
PLACES = ("@waiting", "@delayed", "@active", "@locked", "@completed", "@failed", "@token")
texts = st.one_of(st.sampled_from((*PLACES, "q", "empty", "bad name", "")), st.text(max_size=6))


def numbers(kind: mi.IntType | mi.FloatType) -> st.SearchStrategy[Any]:
    """Numbers around the bounds, and some far away."""
    low = -(2**63) if kind.ge is None else int(kind.ge)
    high = 2**64 - 1 if kind.le is None else int(kind.le)
    near = [low - 1, low, low + 1, high - 1, high, high + 1]
    some: st.SearchStrategy[Any] = st.sampled_from([one for one in near if -(2**63) <= one < 2**64])
    if isinstance(kind, mi.FloatType):
        some |= st.floats(float(low), float(high)) | st.just(high + 0.5)
    return st.one_of(st.integers(max(low, 0), min(high, 1000)), some, st.just(5.0), st.just(2.5))


def fitting(kind: mi.Type) -> st.SearchStrategy[Any]:
    """Values that are right, or nearly right, for a declared type."""
    if isinstance(kind, mi.Metadata):
        return fitting(kind.type)
    if isinstance(kind, mi.UnionType):
        return st.one_of([fitting(member) for member in kind.types])
    if isinstance(kind, mi.IntType | mi.FloatType):
        return numbers(kind)
    if isinstance(kind, mi.StrType):
        return texts
    if isinstance(kind, mi.BoolType):
        return st.booleans()
    if isinstance(kind, mi.NoneType):
        return st.none() | st.just([])
    if isinstance(kind, mi.LiteralType):
        return st.sampled_from(kind.values)
    if isinstance(kind, mi.ListType):
        return st.lists(fitting(kind.item_type), max_size=4)
    if isinstance(kind, mi.StructType):
        return fields_of(kind.cls, right=9)
    return values


@st.composite
def fields_of(draw: st.DrawFn, struct: type[msgspec.Struct], right: int) -> dict[str, Any]:
    """A map for ``struct``; of ten values about ``right`` have the declared type."""
    info = mi.type_info(struct)
    assert isinstance(info, mi.StructType)
    found = {}
    for field in info.fields:
        if field.encode_name == "reqId" or not (field.required or draw(st.booleans())):
            continue
        good = draw(st.integers(1, 10)) <= right
        found[field.encode_name] = draw(fitting(field.type) if good else values)
    return found


@st.composite
def requests(draw: st.DrawFn, right: int, *, for_shards: bool = False) -> dict[str, Any]:
    """Commands as maps."""
    spec = draw(st.sampled_from(SHARD_SPECS if for_shards else ALL_SPECS))
    return {"cmd": spec.name, **draw(fields_of(spec.request, right))}


ALL_SPECS = list(COMMANDS.values())
SHARD_SPECS = [spec for spec in ALL_SPECS if spec.route is not Route.ROUTER]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A command with a few bytes changed, missing or too many."""
    data = bytearray(pack(draw(requests(9))))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return bytes(data)


# -- the decoder alone -------------------------------------------------------------------------------------


def outcome(payload: bytes) -> Command | InvalidCommand:
    """What decoding gives; any other exception than InvalidCommand fails the test."""
    try:
        return decode_command(payload)
    except InvalidCommand as error:
        text = str(error)
        assert text
        text.encode()  # goes into a reply
        return error
    except DECODER_BUGS:
        assume(False)
        raise


@given(st.binary(max_size=60))
@example(b"")
@example(b"\xc1")
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\x81\xdb\xff\xff\xff\xff")
@example(b"\x81\xa3cmd\xdd\xff\xff\xff\xff")
def test_arbitrary_bytes(payload: bytes) -> None:
    outcome(payload)


@given(damaged())
def test_damaged_commands(payload: bytes) -> None:
    outcome(payload)


@given(values)
@example({"cmd": None})
@example({b"cmd": "Ping"})
@example([])
@example({"cmd": "ping"})
def test_arbitrary_structures_are_no_commands(value: Any) -> None:
    assert isinstance(outcome(pack(value)), InvalidCommand)


@given(requests(right=7))
def test_a_command_is_understood_or_refused(request: dict[str, Any]) -> None:
    found = outcome(pack(request))
    note(str(found))
    if not isinstance(found, InvalidCommand):
        spec = COMMANDS[request["cmd"]]
        assert type(found) in (spec.request, spec.plain)


@given(requests(right=9), values)
def test_unknown_fields_are_ignored(request: dict[str, Any], value: Any) -> None:
    info = mi.type_info(COMMANDS[request["cmd"]].request)
    assert isinstance(info, mi.StructType)
    assume(not info.forbid_unknown_fields)  # where a misspelled field would mean more jobs
    plain, more = outcome(pack(request)), outcome(pack({"x-unknown": value, **request, "zzz": value}))
    assert isinstance(plain, InvalidCommand) == isinstance(more, InvalidCommand)
    if isinstance(plain, InvalidCommand):
        assert str(plain) == str(more)
    else:
        assert said(plain) == said(more)


@given(requests(right=10), st.sampled_from([None, msgpack.ExtType(0, b""), msgpack.ExtType(0, b"\0")]))
def test_null_and_undefined_mean_absent(request: dict[str, Any], nothing: Any) -> None:
    """Every option that is not in the request may as well be there as null or undefined."""
    # Undefined as a payload is made null by the slow way, and by the engine after the fast one.
    assume(b"\xd4\0" not in pack(request) and b"\xc7\0" not in pack(request))
    # Known bug: test_a_null_token_in_a_list_beside_an_undefined_field
    assume(None not in (request.get("tokens") or ()))
    assume(None not in (request.get("removeOnCompletes") or ()))
    info = mi.type_info(COMMANDS[request["cmd"]].request)
    assert isinstance(info, mi.StructType)
    payloads = {"reqId", "data", "result"}  # any value is theirs
    names = [field.encode_name for field in info.fields if field.encode_name not in payloads]
    plain = outcome(pack(request))
    more = outcome(pack({**dict.fromkeys(names, nothing), **request}))
    if isinstance(more, InvalidCommand) and str(more).startswith("Queue name"):
        return  # the slow way checks it at once, the fast one leaves it to the shard
    assert type(plain) is type(more)
    if not isinstance(plain, InvalidCommand):
        assert msgspec.msgpack.encode(plain) == msgspec.msgpack.encode(more)


# -- declared bounds ---------------------------------------------------------------------------------------

Number = mi.IntType | mi.FloatType


def number_in(kind: mi.Type) -> Number | None:
    """The number among what a field may be."""
    if isinstance(kind, mi.Metadata):
        return number_in(kind.type)
    members = kind.types if isinstance(kind, mi.UnionType) else (kind,)
    return next((member for member in members if isinstance(member, Number)), None)


def problem(kind: mi.Type) -> str | None:
    """What is said of every value that does not fit, if a type says it."""
    return (kind.extra or {}).get("problem") if isinstance(kind, mi.Metadata) else None


def number_fields(struct: type[msgspec.Struct], inside: str = "") -> Iterator[tuple[str, str, Number]]:
    """``(list it is in, name, type)`` of every number a client may send in a command."""
    info = mi.type_info(struct)
    assert isinstance(info, mi.StructType)
    for field in info.fields:
        kind = field.type
        if problem(kind):
            continue  # see test_a_field_with_a_text_of_its_own
        if isinstance(kind, mi.ListType) and isinstance(kind.item_type, mi.StructType):
            yield from number_fields(kind.item_type.cls, field.encode_name)
        elif (number := number_in(kind)) is not None:
            yield inside, field.encode_name, number


NUMBERS = [(spec, *found) for spec in ALL_SPECS for found in number_fields(spec.request)]
NUMBER_NAMES = [f"{spec.name}-{inside + '-' if inside else ''}{name}" for spec, inside, name, _ in NUMBERS]
every_number = table(("spec", "inside", "name", "kind"), NUMBERS, ids=NUMBER_NAMES)


def with_value(spec: Spec, inside: str, name: str, value: Any) -> tuple[bytes, str]:
    """A right command but for one value, and what its refusal starts with."""
    info = mi.type_info(spec.request)
    assert isinstance(info, mi.StructType)
    needed = _needed(info)
    if not inside:
        return pack({"cmd": spec.name, **needed, name: value}), ""
    (field,) = [field for field in info.fields if field.encode_name == inside]
    assert isinstance(field.type, mi.ListType)
    assert isinstance(field.type.item_type, mi.StructType)
    entry = _needed(field.type.item_type)
    entries = [entry, {**entry, name: value}, entry]
    return pack({"cmd": spec.name, **needed, inside: entries}), f"{inside}[1]: "


def _needed(info: mi.StructType) -> dict[str, Any]:
    return {f.encode_name: MINIMAL[f.encode_name] for f in info.fields if f.required}


def read_value(command: Command, inside: str, name: str) -> Any:
    where = getattr(command, inside)[1] if inside else command
    (field,) = [one for one in msgspec.structs.fields(where) if one.encode_name == name]
    return getattr(where, field.name)


def refusal(payload: bytes) -> str:
    with pytest.raises(InvalidCommand) as caught:
        decode_command(payload)
    return str(caught.value)


def test_the_bounds_of_the_seeds_are_declared() -> None:
    """The validation table of the specification, so that a bound that vanishes is noticed."""
    day, year = 86_400_000, 365 * 86_400_000
    expected = {
        "priority": (-(2**31), 2**31 - 1),  # the shard has tighter bounds, which depend on the version
        "delay": (0, year),
        "timeout": (0, day),
        "maxAttempts": (1, 1000),
        "backoff": (0, day),
        "ttl": (0, year),
    }
    for command, inside in (("PUSH", ""), ("PUSHB", "jobs")):
        found = {
            name: (kind.ge, kind.le)
            for spec, where, name, kind in NUMBERS
            if spec.name == command and where == inside
        }
        assert {name: found[name] for name in expected} == expected
    others = {(spec.name, name): (kind.ge, kind.le) for spec, _, name, kind in NUMBERS}
    assert others["PULL", "timeout"] == others["PULLB", "timeout"] == (0, 60_000)
    assert others["PULLB", "count"] == (1, 1000)


@every_number
def test_at_a_bound(spec: Spec, inside: str, name: str, kind: Number) -> None:
    for bound in (kind.ge, kind.le):
        if bound is not None:
            for value in (int(bound), float(bound)):
                payload, _ = with_value(spec, inside, name, value)
                assert read_value(decode_command(payload), inside, name) == bound


@every_number
def test_beyond_a_bound(spec: Spec, inside: str, name: str, kind: Number) -> None:
    beyond: list[tuple[float, str]] = []
    if kind.ge is not None:
        text = f"{name} must be at least {int(kind.ge)}"
        beyond += [(int(kind.ge) - 1, text), (float(kind.ge) - 1, text), (-1e300, text)]
        if isinstance(kind, mi.FloatType):
            beyond += [(math.nextafter(kind.ge, -math.inf), text), (-math.inf, text)]
    if kind.le is not None:
        text = f"{name} must be at most {int(kind.le)}"
        beyond += [(int(kind.le) + 1, text), (float(kind.le) + 1, text), (1e300, text), (2**64 - 1, text)]
        if isinstance(kind, mi.FloatType):
            beyond += [(math.nextafter(kind.le, math.inf), text), (math.inf, text)]
    for value, text in beyond:
        payload, prefix = with_value(spec, inside, name, value)
        if isinstance(kind, mi.IntType) and abs(value) >= 2**63:  # in no language's 64 bits
            assert refusal(payload) in (prefix + text, f"{prefix}{name} must be an integer")
        else:
            assert refusal(payload) == prefix + text


@every_number
def test_within_the_bounds(spec: Spec, inside: str, name: str, kind: Number) -> None:
    for bound, inward in ((kind.ge, 1), (kind.le, -1)):
        if bound is not None:
            payload, _ = with_value(spec, inside, name, int(bound) + inward)
            assert read_value(decode_command(payload), inside, name) == int(bound) + inward


@every_number
@table("value", ["5", "", True, [], [1], b"5", msgpack.ExtType(5, b"x")], ids=repr)
def test_not_a_number(spec: Spec, inside: str, name: str, kind: Number, value: Any) -> None:
    payload, prefix = with_value(spec, inside, name, value)
    assert refusal(payload) == f"{prefix}{name} must be a number"


@every_number
def test_nan_is_not_a_number(spec: Spec, inside: str, name: str, kind: Number) -> None:
    if isinstance(kind, mi.FloatType) and kind.ge is None and kind.le is None:
        pytest.skip("unbounded: see test_nan_of_an_unbounded_number")
    payload, prefix = with_value(spec, inside, name, math.nan)
    assert refusal(payload) == f"{prefix}{name} must be a number"


@every_number
def test_not_an_integer(spec: Spec, inside: str, name: str, kind: Number) -> None:
    for value in (2.5, math.inf, -math.inf):
        payload, prefix = with_value(spec, inside, name, value)
        if isinstance(kind, mi.IntType):
            assert refusal(payload) == f"{prefix}{name} must be an integer"
        elif value == 2.5:
            assert read_value(decode_command(payload), inside, name) == 2.5


@table("spec", ALL_SPECS, ids=[spec.name for spec in ALL_SPECS])
def test_a_required_field_that_is_missing_is_named(spec: Spec) -> None:
    info = mi.type_info(spec.request)
    assert isinstance(info, mi.StructType)
    needed = [field.encode_name for field in info.fields if field.required]
    for missing in needed:
        request = {"cmd": spec.name} | {name: MINIMAL[name] for name in needed if name != missing}
        told = problem(next(field.type for field in info.fields if field.encode_name == missing))
        expected = "Queue name is required" if missing == "queue" else f"{missing} {told or 'is required'}"
        assert refusal(pack(request)) == expected
        for nothing in (None, msgpack.ExtType(0, b"\0")):
            assert refusal(pack({**request, missing: nothing})) == expected


TOLD = [
    (spec, field.encode_name, told)
    for spec in ALL_SPECS
    for field in msgspec.structs.fields(spec.request)
    if (told := problem(mi.type_info(field.type)))
]


@table(("spec", "name", "told"), TOLD, ids=[f"{s.name}-{name}" for s, name, _ in TOLD])
@table("value", ["5", True, [], math.nan, math.inf, -math.inf, 1e300, {}], ids=repr)
def test_a_field_with_a_text_of_its_own(spec: Spec, name: str, told: str, value: Any) -> None:
    payload, _ = with_value(spec, "", name, value)
    assert refusal(payload) == f"{name} {told}"


def test_the_first_wrong_field_is_told() -> None:
    """Order of checks: the reference server, "Order of checks (PUSH)"."""
    wrong: dict[str, Any] = {
        "ttl": -1,
        "backoff": -1,
        "maxAttempts": 0,
        "timeout": -1,
        "delay": -1,
        "priority": 2**31,
        "queue": "bad name",
    }
    told = []
    while wrong:
        text = refusal(pack({"queue": "q", **wrong, "cmd": "PUSH"}))
        field = "queue" if text.startswith("Queue name") else text.split()[0]
        told.append(field)
        del wrong[field]
    assert told == ["queue", "priority", "delay", "timeout", "maxAttempts", "backoff", "ttl"]


@pytest.mark.parametrize(
    ("jobs", "text"),
    [
        (5, "jobs must be a list"),
        ([5], "jobs[0] must be a map"),
        ([{}, []], "jobs[1] must be a map"),
        ([{}, {b"data": 1}], "jobs[1] must be a map"),
        ([{"tags": "x"}], "jobs[0]: tags must be a list"),
        ([{"tags": ["x", 5]}], "jobs[0]: tags[1] must be a string"),
        ([{"lifo": 1}], "jobs[0]: lifo must be true or false"),
        ([{}, {"uniqueKey": 7}], "jobs[1]: uniqueKey must be a string"),
        ([{"priority": 1.5}], "jobs[0]: priority must be an integer"),
        ([{}, {}, {"delay": "1"}], "jobs[2]: delay must be a number"),
        ([{"backoff": "fast"}], "jobs[0]: backoff must be a number"),
    ],
)
def test_refusals_within_a_batch(jobs: Any, text: str) -> None:
    assert refusal(pack({"cmd": "PUSHB", "queue": "q", "jobs": jobs})) == text


# -- through the shard -------------------------------------------------------------------------------------


class Bench(Driver):
    """A shard in memory with a job in every state, and one client."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, str] = {}
        for option in (
            {},
            {"delay": 10_000},
            {"priority": 1},
            {"priority": 2},
            {"priority": 3},
            {"priority": 4},
        ):
            self.ask(cmd="PUSH", queue="q", uniqueKey=str(option), maxAttempts=1, data=[1], **option)
        taken = [self.ask(cmd="PULL", queue="q", owner=owner) for owner in (None, None, None, "w")]
        names = ("@failed", "@completed", "@active", "@locked")
        self.known = {name: reply["job"]["id"] for name, reply in zip(names, taken, strict=True)}
        self.known["@token"] = taken[3]["token"]
        self.ask(cmd="ACK", id=self.known["@completed"], result={"x": 1})
        self.ask(cmd="FAIL", id=self.known["@failed"], error="no")
        for name in ("waiting", "delayed"):
            (job,) = self.ask(cmd="GetJobs", queue="q", state=name)["jobs"]
            self.known[f"@{name}"] = job["id"]

    @property
    def client(self) -> Client:
        return self.shard.client(1, 2)

    def step(self, payload: bytes) -> list[dict[str, Any]]:
        """A payload a millisecond later; the replies to it and to polls."""
        self.tick(self.now + 1)
        return [reply for _, reply in self.execute(1, payload)]

    def filled(self, value: Any) -> Any:
        """``value`` with ids and tokens in place of their names."""
        if isinstance(value, str):
            return self.known.get(value, value)
        if type(value) is list:
            return [self.filled(one) for one in value]
        if isinstance(value, dict):
            return {key: self.filled(one) for key, one in value.items()}
        return value

    def snapshot(self) -> dict[str, Any]:
        """Everything that a later command or a restart could notice."""
        state = self.shard.engine.state
        queues = {
            name: {
                "jobs": sorted(queue.jobs),
                "unique": dict(queue.unique),
                "waiters": [waiter.deadline for waiter in queue.waiters if not waiter.done],
                "counts": (
                    queue.waiting,
                    len(queue.delayed),
                    len(queue.active),
                    queue.completed,
                    queue.failed,
                ),
                "paused": queue.paused,
            }
            for name, queue in state.queues.items()
        }
        totals = state.totals
        return {
            "jobs": {job_id: plain_struct(job) for job_id, job in state.jobs.items()},
            "queues": queues,
            "early_pulls": {name: len(pulls) for name, pulls in state.early_pulls.items()},
            "held": self.held(),
            "waiters": {conn: client.waiters for conn, client in state.clients.items()},
            "totals": (totals.pushed, totals.pulled, totals.completed, totals.failed),
            "next": (state.next_seq, state.next_queue_id),
            "deadline": self.shard.engine.next_deadline(),
            "writes": pending(state.out),
            "rows": self.shard.store.database.connection.total_changes,
        }


def plain_struct(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return {name: plain_struct(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list | tuple):
        return [plain_struct(one) for one in value]
    return value


def pending(out: Outbox) -> tuple[int, int, int, int, bool]:
    return len(out.dirty), len(out.events), len(out.attempts), len(out.queues), out.durable


def parts_done(request: dict[str, Any], error: str) -> bool:
    """ACKB completes the known jobs when others are unknown; its error says so (the reference server)."""
    return request.get("cmd") == "ACKB" and error.startswith("Job not found or not in processing state")


def run(bench: Bench, payload: bytes, request: dict[str, Any]) -> None:
    """Execute and check the promises that hold for every payload."""
    client = bench.client
    bench.tick(bench.now + 1)  # what is due anyway is not the command's doing
    bench.commit()  # and reads would have the writes before them written
    before, waiters, polls = bench.snapshot(), client.waiters, client.slow
    try:
        replies = [reply for _, reply in bench.execute(1, payload)]
    except (*DECODER_BUGS, *ENGINE_BUGS):
        assume(False)
        raise
    parked = client.waiters - waiters
    assert len(replies) + parked == 1, "one reply, or one parked poll; a poll that ends is a reply more"
    mine = [reply for reply in replies if reply.get("reqId") == request.get("reqId")]
    if mine and (error := mine[0].get("error")):
        note(error)
        assert mine[0]["ok"] is False
        if not parts_done(request, error):
            assert bench.snapshot() == before
    elif mine and not COMMANDS[request["cmd"]].writes:
        assert bench.snapshot() == before
    poll = is_slow(request.get("cmd"), request.get("timeout"))
    assert client.slow - polls + parked == poll, "each poll is counted once, when it is answered"


@given(st.lists(requests(right=9, for_shards=True), min_size=1, max_size=12))
def test_one_answer_and_a_refusal_changes_nothing(batch: list[dict[str, Any]]) -> None:
    bench = Bench()
    for number, request in enumerate(batch):
        filled = bench.filled({**request, "reqId": number})
        run(bench, pack(filled), filled)
    bench.commit()
    bench.close()


@given(st.lists(values, min_size=1, max_size=12))
def test_one_answer_to_any_structure(batch: list[Any]) -> None:
    bench = Bench()
    for value in batch:
        run(bench, pack(value), {})
    bench.commit()
    bench.close()


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=12))
def test_one_answer_to_any_bytes(batch: list[bytes]) -> None:
    bench = Bench()
    for payload in batch:
        run(bench, payload, {})
    bench.commit()
    bench.close()


@given(st.lists(requests(right=10, for_shards=True), min_size=1, max_size=12), values)
def test_req_id_comes_back_as_it_was_sent(batch: list[dict[str, Any]], req_id: Any) -> None:
    bench = Bench()
    for request in batch:
        try:
            bench.step(pack(bench.filled({**request, "reqId": req_id})))
        except (*DECODER_BUGS, *ENGINE_BUGS):
            assume(False)
    frames = [encode_frame(reply)[4:] for _, reply in bench.shard.commit()]
    encoded = pack("reqId") + pack(req_id)
    answers = [frame for frame in frames if pack("reqId") in frame]
    assert len(answers) + bench.client.waiters == len(batch)
    assert all(encoded in answer for answer in answers)
    bench.close()


PUSH_HEAD = b"\x83\xa3cmd\xa4PUSH\xa5queue\xa1q"
NESTED = b"\x91" * 5000 + b"\xc0"
HOSTILE = {
    "nested data": PUSH_HEAD + b"\xa4data" + NESTED,
    "nested unknown field": PUSH_HEAD + b"\xa7unknown" + NESTED,
    "nested priority": PUSH_HEAD + b"\xa8priority" + NESTED,
    "nested reqId": b"\x82\xa3cmd\xa4Nope\xa5reqId" + NESTED,
    "nested cmd": b"\x81\xa3cmd" + NESTED,
    "nested maps": PUSH_HEAD + b"\xa4tags" + b"\x81\xa1x" * 3000 + b"\xc0",
    "nested to the end": b"\x91" * 100_000,
    "queue not UTF-8": b"\x82\xa3cmd\xa4PUSH\xa5queue\xa1\xff",
    "cmd not UTF-8": b"\x82\xa3cmd\xa1\xff\xa5queue\xa1q",
    "key not UTF-8": b"\x83\xa3cmd\xa4PUSH\xa5quiue\xa1q\xa1\xff\xc0",
    "id not UTF-8": b"\x82\xa3cmd\xa6GetJob\xa2id\xa1\xff",
    "surrogate": b"\x82\xa3cmd\xa6GetJob\xa2id\xa3\xed\xa0\x80",
}


@table("payload", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_payloads_are_refused(payload: bytes) -> None:
    reply = one_reply(payload)
    assert reply["ok"] is False
    assert reply["error"]


@pytest.mark.parametrize("field", ["name", "__parentId"])
def test_nesting_that_is_just_allowed(field: str) -> None:
    """The engine looks into data that the decoder has taken, from a place where the stack is deeper."""
    bench = Bench()
    taken = 0
    for depth in [*range(450, 550), *range(850, 1000, 10)]:
        data = b"\x82" + pack(field) + pack("n") + b"\xa1x" + b"\x91" * depth + b"\xc0"
        payload = b"\x85" + PUSH_HEAD[1:] + b"\xa8parentId\xa1n\xa6repeat\xc0\xa4data" + data
        ((_, reply),) = bench.execute(3, payload, version=3)
        taken += reply["ok"]
        assert reply["ok"] or reply["error"] in (
            "Invalid command format",
            "Parent job not found: n",
            f"data cannot be read: it is nested deeper than {MAX_DEPTH} levels",
        )
    assert field != "name" or 0 < taken < 100
    bench.close()


LARGE = "x" * 2_000_000  # above SURELY_SMALL: the engine looks into the payload


@pytest.mark.parametrize(
    "data",
    [
        b"\x92\xa1\xff" + pack(LARGE),
        pack({b"key": LARGE}),
        pack({(1, 2): LARGE}),
        b"\x92" + pack(LARGE) + b"\x91" * 970 + b"\xc0",
        pack([LARGE, math.nan, msgpack.Timestamp(1, 2), msgpack.ExtType(5, b"x"), b"\xff"]),
        pack({1: LARGE, None: 2}),
    ],
    ids=["not UTF-8", "bin key", "list as key", "nested 970 deep", "ext and bin", "number as key"],
)
@pytest.mark.parametrize("batch", [False, True], ids=["PUSH", "PUSHB"])
def test_a_large_payload_of_any_kind_is_taken_or_refused(data: bytes, batch: bool) -> None:
    payload = PUSH_HEAD + b"\xa4data" + data
    if batch:
        payload = b"\x83\xa3cmd\xa5PUSHB\xa5queue\xa1q\xa4jobs\x91\x81\xa4data" + data
    reply = one_reply(payload)
    prefix = "jobs[0]: " if batch else ""
    assert reply["ok"] or reply["error"] in {
        f"{prefix}Job data must be JSON serializable",
        f"{prefix}Job data too large (max 10MB)",
        "Invalid command format",  # the nested one, where the stack is already deep
        f"{prefix}data cannot be read: it is nested deeper than {MAX_DEPTH} levels",
        f"{prefix}data cannot be read: it has text that is not UTF-8 (byte 0xff); send bytes as bytes",
    }


def test_a_refused_push_with_a_timeout_is_no_poll() -> None:
    bench = Bench()
    before = bench.client.slow
    bench.step(msgpack.packb({"cmd": "PUSH", "queue": "bad name", "timeout": 1000}))
    assert bench.client.slow == before


# -- what once went wrong ----------------------------------------------------------------------------------


def one_reply(payload: bytes) -> dict[str, Any]:
    bench = Bench()
    (reply,) = bench.step(payload)
    bench.commit()
    bench.close()
    return reply


@pytest.mark.parametrize("value", [2.0**64, 1e300])
@pytest.mark.parametrize(("command", "field"), [("GetJobs", "offset"), ("Hello", "protocolVersion")])
def test_a_huge_whole_float_is_refused_or_cut(command: str, field: str, value: float) -> None:
    payload = pack({"cmd": command, "queue": "q", field: value})
    assert outcome_without_known_bugs(payload) is not None


def outcome_without_known_bugs(payload: bytes) -> Command | InvalidCommand:
    try:
        return decode_command(payload)
    except InvalidCommand as error:
        return error


@pytest.mark.parametrize("state", ["waiting", "completed", None])
@pytest.mark.parametrize("offset", [2**63 - 1, 2**64 - 1])
def test_a_huge_offset_gives_an_empty_page(offset: int, state: str | None) -> None:
    reply = one_reply(pack({"cmd": "GetJobs", "queue": "q", "offset": offset, "state": state}))
    assert reply.get("jobs") == [] or reply["ok"] is False


def test_nan_of_an_unbounded_number() -> None:
    bench = Bench()
    reply = bench.ask(cmd="Progress", id=bench.known["@active"], progress=math.nan)
    assert reply == {"ok": False, "error": "progress must be a number"}
    bench.close()


def test_a_null_token_in_a_list_beside_an_undefined_field() -> None:
    """`{ids, tokens: [null], results: undefined}` is what a client in JavaScript may send."""
    request = {"cmd": "ACKB", "ids": ["x"], "tokens": [None]}
    assert isinstance(decode_command(pack(request)), AckBatch)
    assert isinstance(decode_command(pack({**request, "results": msgpack.ExtType(0, b"\0")})), AckBatch)


def test_the_commands_that_this_file_drives() -> None:
    """The tests above name some commands; a new one with numbers or texts is covered by derivation."""
    assert COMMANDS["PUSH"].request is Push
    assert COMMANDS["PULL"].request is Pull
    assert {spec.route for spec in SHARD_SPECS} <= set(Route) - {Route.ROUTER}
    assert isinstance(Bench().client, Client)
