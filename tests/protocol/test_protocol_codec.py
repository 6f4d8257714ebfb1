"""Commands and replies on the wire: what is echoed, what counts as absent, what is said of a refusal."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import msgspec
import pytest
from support.commands import said
from support.table import table

from bunqueue.protocol.codec import InvalidCommand, decode_command, encode_frame, encode_reply
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import Command, ErrorReply, Ok, refused
from bunqueue.protocol.commands.core import (
    Ack,
    Fail,
    JobHeartbeat,
    PlainPush,
    PlainPushBatch,
    Pull,
    PullBatch,
    Push,
    PushBatch,
    PushReply,
)
from bunqueue.protocol.commands.server import Ping
from bunqueue.protocol.framing import HEADER

pack = msgpack.packb
UNDEFINED = [msgpack.ExtType(0, b"\0"), msgpack.ExtType(0, b"")]
ABSENT = [None, *UNDEFINED]

REQ_IDS = [
    "",
    "r1",
    "\N{SNOWMAN}" * 100,
    0,
    7,
    -1,
    2**63,
    -(2**63),
    1.0,
    1.5,
    math.inf,
    True,
    False,
    None,
    b"bytes",
    [1, "two", [3]],
    {"a": {"b": None}},
    msgpack.ExtType(9, b"xyz"),
    msgpack.Timestamp(5, 6),
    *UNDEFINED,
]


def refusal(payload: bytes) -> InvalidCommand:
    with pytest.raises(InvalidCommand) as caught:
        decode_command(payload)
    return caught.value


def reply_bytes(reply: msgspec.Struct) -> bytes:
    frame = encode_frame(reply)  # type: ignore[arg-type]
    assert int.from_bytes(frame[:HEADER], "big") == len(frame) - HEADER
    return frame[HEADER:]


# -- reqId -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("req_id", REQ_IDS, ids=repr)
@pytest.mark.parametrize(
    "request_",
    [{"cmd": "Ping"}, {"cmd": "PULL", "queue": "q", "timeout": None}],
    ids=["fast way", "slow way"],
)
def test_req_id_comes_back_byte_by_byte(req_id: Any, request_: dict[str, Any]) -> None:
    command = decode_command(pack({**request_, "reqId": req_id}))
    payload = reply_bytes(Ok(req_id=command.req_id))
    assert payload.endswith(pack("reqId") + pack(req_id))
    assert msgpack.unpackb(payload).keys() == {"ok", "reqId"}


@table("req_id", REQ_IDS, ids=repr)
@table(
    "request_",
    [{"cmd": "PULL"}, {"cmd": "Nope"}, {"cmd": 5}, {}, {"cmd": "PUSH", "queue": "q", "delay": -1}],
    ids=["missing field", "unknown command", "no text", "nothing", "bound"],
)
def test_req_id_of_a_refused_command_comes_back(req_id: Any, request_: dict[str, Any]) -> None:
    error = refusal(pack({**request_, "reqId": req_id}))
    payload = reply_bytes(refused(error, error.req_id))
    said = pack("ok") + b"\xc2" + pack("reqId") + pack(req_id) + pack("error") + pack(str(error))
    assert payload[1:].startswith(said + pack("code"))


def test_without_req_id_the_key_is_absent() -> None:
    assert msgpack.unpackb(reply_bytes(Ok(req_id=decode_command(pack({"cmd": "Ping"})).req_id))) == {
        "ok": True
    }
    assert "reqId" not in msgpack.unpackb(reply_bytes(refused(refusal(pack({})))))


def test_req_id_keeps_the_width_that_it_came_with() -> None:
    """Another encoder may have sent 1 as eight bytes: it gets these back."""
    wide = b"\xd3\x00\x00\x00\x00\x00\x00\x00\x01"
    command = decode_command(b"\x82\xa3cmd\xa4Ping\xa5reqId" + wide)
    assert reply_bytes(Ok(req_id=command.req_id)).endswith(wide)


# -- absent ----------------------------------------------------------------------------------------


@table("nothing", ABSENT, ids=repr)
@table(
    ("request_", "field"),
    [
        ({"cmd": "PUSH", "queue": "q"}, field)
        for field in (
            "name priority delay timeout maxAttempts backoff ttl uniqueKey tags lifo removeOnComplete"
            " removeOnFail durable jobId customId dependsOn groupId repeat dedup"
        ).split()
    ]
    + [({"cmd": "PULL", "queue": "q"}, field) for field in ("timeout", "owner", "lockTtl")]
    + [({"cmd": "ACK", "id": "x"}, "token")]
    + [({"cmd": "FAIL", "id": "x"}, field) for field in ("error", "token", "unrecoverable", "stack")]
    + [({"cmd": "JobHeartbeat", "id": "x"}, field) for field in ("token", "duration")]
    + [({"cmd": "ACKB", "ids": []}, field) for field in ("results", "tokens")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_null_and_undefined_mean_absent(request_: dict[str, Any], field: str, nothing: Any) -> None:
    plain = decode_command(pack(request_))
    assert said(decode_command(pack({**request_, field: nothing}))) == said(plain)


@pytest.mark.parametrize("nothing", ABSENT, ids=repr)
def test_null_and_undefined_mean_absent_inside_a_batch(nothing: Any) -> None:
    fields = dict.fromkeys(["priority", "delay", "backoff", "tags", "lifo", "jobId"], nothing)
    command = decode_command(pack({"cmd": "PUSHB", "queue": "q", "jobs": [fields]}))
    plain = decode_command(pack({"cmd": "PUSHB", "queue": "q", "jobs": [{}]}))
    assert said(command) == said(plain)


def test_null_data_is_a_value() -> None:
    command = decode_command(pack({"cmd": "PUSH", "queue": "q", "data": None, "priority": None}))
    assert isinstance(command, PlainPush)
    assert bytes(command.data) == b"\xc0"


# -- what other encoders send ----------------------------------------------------------------------


@pytest.mark.parametrize("value", [5, 5.0, 2**40 % 7 + 3])
def test_whole_floats_are_integers(value: float) -> None:
    command = decode_command(pack({"cmd": "PULLB", "queue": "q", "count": value}))
    assert isinstance(command, PullBatch)
    assert (command.count, type(command.count)) == (5, int)


def test_eight_byte_integers_are_accepted() -> None:
    for wide in (b"\xd3" + (5).to_bytes(8, "big"), b"\xcf" + (5).to_bytes(8, "big")):
        command = decode_command(b"\x83\xa3cmd\xa4PUSH\xa5queue\xa1q\xa8priority" + wide)
        assert isinstance(command, PlainPush)
        assert command.priority == 5


@pytest.mark.parametrize(
    ("backoff", "shown"),
    [
        (5, 5),
        (2.5, 2.5),
        ({"type": "fixed", "delay": 7}, {"delay": 7, "type": "fixed"}),
        ({"delay": 7.5}, {"delay": 7.5, "type": "exponential"}),
        ({"type": None, "delay": 7}, {"delay": 7, "type": "exponential"}),
    ],
)
def test_backoff_as_number_and_as_map(backoff: Any, shown: Any) -> None:
    command = decode_command(pack({"cmd": "PUSH", "queue": "q", "backoff": backoff}))
    assert msgpack.unpackb(encode_reply(command))["backoff"] == shown


def test_the_order_of_keys_does_not_matter() -> None:
    command = decode_command(pack({"timeout": 5, "queue": "q", "reqId": 1, "cmd": "PULL", "more": {}}))
    assert isinstance(command, Pull)
    assert (command.queue, command.timeout) == ("q", 5)


def test_of_a_key_that_comes_twice_the_last_one_counts() -> None:
    """The router peeks into the same bytes and must come to the same command."""
    body = b"\x83\xa3cmd\xa4PULL\xa5queue\xa1q\xa3cmd\xa4Ping"
    assert isinstance(decode_command(body), Ping)
    body = b"\x83\xa5queue\xa1q\xa3cmd\xa4PULL\xa5queue\xa1r"
    command = decode_command(body)
    assert isinstance(command, Pull)
    assert command.queue == "r"


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        ({"cmd": "PUSH", "queue": "q"}, PlainPush),
        ({"cmd": "PUSH", "queue": "q", "lifo": True}, Push),
        ({"cmd": "PUSHB", "queue": "q", "jobs": []}, PlainPushBatch),
        ({"cmd": "PUSHB", "queue": "q", "jobs": [{"lifo": True}]}, PushBatch),
        ({"cmd": "ACK", "id": "x"}, Ack),
        ({"cmd": "FAIL", "id": "x", "stack": ["a", "b"]}, Fail),
        ({"cmd": "FAIL", "id": "x", "stack": "a"}, Fail),
        ({"cmd": "JobHeartbeat", "id": "x", "duration": 5.0}, JobHeartbeat),
    ],
)
def test_the_tag_chooses_the_type(request_: dict[str, Any], kind: type[Command]) -> None:
    assert type(decode_command(pack(request_))) is kind


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "Invalid command"),
        ({"cmd": None}, "Invalid command"),
        ({"cmd": ""}, "Invalid command"),
        ({"cmd": 5}, "Invalid command"),
        ({"cmd": ["PUSH"]}, "Invalid command"),
        ({"cmd": b"PUSH"}, "Invalid command"),
        ({"cmd": "Nope"}, "Unknown command: Nope"),
        ({"cmd": "push", "queue": "q"}, "Unknown command: push"),
        ([], "Invalid command format"),
        (5, "Invalid command format"),
        (None, "Invalid command format"),
        ("PUSH", "Invalid command format"),
        ({1: 2}, "Invalid command format"),
        ({"cmd": "PUSH"}, "Queue name is required"),
        ({"cmd": "PUSH", "queue": "", "delay": -1}, "Queue name is required"),
        ({"cmd": "PUSH", "queue": 5, "delay": -1}, "Queue name must be a string"),
        ({"cmd": "PUSH", "queue": "a b", "delay": -1}, "Queue name contains invalid characters"),
        ({"cmd": "PUSH", "queue": "x" * 257, "delay": -1}, "Queue name too long (max 256 characters)"),
        ({"cmd": "ACK"}, "id is required"),
        ({"cmd": "ACK", "id": 5}, "id must be a string"),
        ({"cmd": "ACKB"}, "ids is required"),
        ({"cmd": "ACKB", "ids": "x"}, "ids must be a list"),
        ({"cmd": "ACKB", "ids": ["x", 5]}, "ids[1] must be a string"),
        ({"cmd": "ACKB", "ids": ["x"], "tokens": [5]}, "tokens[0] must be a string"),
        ({"cmd": "FAIL", "id": "x", "unrecoverable": 1}, "unrecoverable must be true or false"),
        (
            {"cmd": "PUSH", "queue": "q", "backoff": {"type": "slow"}},
            "backoff.type must be 'fixed' or 'exponential'",
        ),
        ({"cmd": "PUSH", "queue": "q", "backoff": {"type": "fixed"}}, "backoff.delay is required"),
        ({"cmd": "PUSH", "queue": "q", "jobId": 5}, "jobId must be a string"),
    ],
)
def test_the_words_of_a_refusal(value: Any, text: str) -> None:
    assert str(refusal(pack(value))) == text


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x81", b"\x81\xa3cmd", pack({"cmd": "Ping"}) + b"\xc0"])
def test_what_is_no_messagepack(payload: bytes) -> None:
    error = refusal(payload)
    assert str(error) == "Invalid command format"
    assert isinstance(error.req_id, msgspec.UnsetType)


# -- replies ---------------------------------------------------------------------------------------


def test_ok_is_the_first_key_of_a_reply() -> None:
    payload = reply_bytes(PushReply(id="x", req_id=msgspec.Raw(pack(1))))
    assert next(key for key, _ in msgpack.unpackb(payload, object_pairs_hook=list)) == "ok"
    assert msgpack.unpackb(payload) == {"ok": True, "reqId": 1, "id": "x"}


def test_an_error_reply() -> None:
    assert msgpack.unpackb(reply_bytes(ErrorReply(error="no", code=Code.FORBIDDEN))) == {
        "ok": False,
        "error": "no",
        "code": "FORBIDDEN",
    }
