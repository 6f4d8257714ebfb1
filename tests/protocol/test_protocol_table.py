"""The command table: what is declared once must be whole, as five readers rely on it."""

from __future__ import annotations

from typing import Any

import msgspec
import msgspec.inspect as mi
import pytest
from support.table import table

from bunqueue.protocol.commands import COMMANDS, Command, Merge, Reply, Route, Spec, is_slow
from bunqueue.protocol.commands.core import JobFields, PlainPush, Push
from bunqueue.protocol.commands.queues import Pause
from bunqueue.protocol.commands.server import Ping
from bunqueue.server.commands import server_commands as of_router
from shardproc.engine.all_handlers import HANDLERS, unhandled
from shardproc.engine.registry import handles

SEVERAL = (Route.IDS, Route.ALL, Route.QUEUE_OR_ALL, Route.QUEUE_OR_EACH)
SPECS = list(COMMANDS.values())
every_command = table("spec", SPECS, ids=[spec.name for spec in SPECS])

MORE = ("delay", "priority", "message", "duration", "tokens", "durations")  # required by few commands
NEEDS = {Route.QUEUE: ("queue", mi.StrType), Route.ID: ("id", mi.StrType), Route.IDS: ("ids", mi.ListType)}


def fields_of(struct: type[msgspec.Struct]) -> dict[str, mi.Field]:
    info = mi.type_info(struct)
    assert isinstance(info, mi.StructType)
    return {field.encode_name: field for field in info.fields}


def plain(kind: mi.Type) -> mi.Type:
    return plain(kind.type) if isinstance(kind, mi.Metadata) else kind


@every_command
def test_has_a_paragraph(spec: Spec) -> None:
    text = spec.request.__dict__.get("__doc__") or ""
    assert len(text) > 10
    assert text.strip()[-1] in ".?"


@every_command
def test_has_no_annotation_that_is_compiled_at_each_start(spec: Spec) -> None:
    for kind in filter(None, (spec.request, spec.plain, spec.reply)):
        texts = [name for name, annotation in kind.__annotations__.items() if isinstance(annotation, str)]
        assert texts == [], kind


@every_command
def test_is_entered_under_its_tag(spec: Spec) -> None:
    assert COMMANDS[spec.name] is spec
    assert spec.request.__struct_config__.tag == spec.name
    assert spec.request.__struct_config__.tag_field == "cmd"
    assert issubclass(spec.reply, Reply)


@every_command
def test_has_the_field_that_its_route_needs(spec: Spec) -> None:
    fields = fields_of(spec.request)
    assert "reqId" in fields
    if spec.route in NEEDS:
        kind = NEEDS[spec.route][1]
        name = {field.name: field.encode_name for field in fields.values()}[spec.key]
        assert fields[name].required
        assert isinstance(plain(fields[name].type), kind)
    elif spec.name not in ("Heartbeat", "SetWebhookEnabled", "Cron"):  # no job's id; Cron is for all to hear
        assert not {"queue", "id", "ids"} & {name for name, field in fields.items() if field.required}


@every_command
def test_is_merged_exactly_if_it_goes_to_several_shards(spec: Spec) -> None:
    assert (spec.merge is not Merge.NONE) == (spec.route in SEVERAL)


@every_command
def test_has_one_handler(spec: Spec) -> None:
    assert (spec.request in HANDLERS) == (spec.route is not Route.ROUTER)
    assert (spec.request in of_router.HANDLERS) == (spec.route is Route.ROUTER)


def test_a_command_without_a_handler_is_noticed() -> None:
    assert unhandled(HANDLERS) == []
    assert unhandled(HANDLERS.keys() - {Pause, PlainPush}) == ["PUSH", "Pause"]


def test_a_command_has_one_handler_only() -> None:
    with pytest.raises(TypeError, match=r"Pause.* has two functions"):
        handles(Pause)(HANDLERS[Pause])
    with pytest.raises(TypeError, match=r"Ping.* has two functions"):
        of_router.handles(Ping)(of_router.HANDLERS[Ping])


def test_handlers_are_of_declared_commands() -> None:
    declared = {kind for spec in SPECS for kind in (spec.request, spec.plain)}
    assert HANDLERS.keys() | of_router.HANDLERS.keys() <= declared


@every_command
def test_parks_exactly_if_it_has_a_poll_timeout(spec: Spec) -> None:
    field = fields_of(spec.request).get("timeout")
    number = field is not None and isinstance(plain(field.type), mi.FloatType)  # of others it may be null
    assert spec.parks == number
    assert is_slow(spec.name, 1) == is_slow(spec.name, 0.5) == (spec.parks or spec.heavy)


@table("timeout", [0, 0.0, -1, None, "5", [], float("nan")], ids=repr)
@every_command
def test_without_a_timeout_above_zero_only_heavy_ones_are_slow(spec: Spec, timeout: Any) -> None:
    default = spec.parks and timeout is None and spec.default_timeout > 0
    assert is_slow(spec.name, timeout) == (spec.heavy or default)


def test_a_wait_without_a_timeout_has_the_default_one() -> None:
    """Router and shard count by the same rule, whatever a language sends for "no value"."""
    assert is_slow("WaitJob", None)
    assert is_slow("WaitJob", msgspec.msgpack.Ext(0, b""))
    assert not is_slow("WaitJob", 0)
    assert not is_slow("PULL", None)
    assert not is_slow("PULL", msgspec.msgpack.Ext(0, b""))


@table("cmd", [None, 5, "Nope", b"PULL", ["PULL"]], ids=repr)
def test_what_is_no_command_is_not_slow(cmd: Any) -> None:
    assert not is_slow(cmd, 1000)


@every_command
def test_reading_may_be_repeated(spec: Spec) -> None:
    assert spec.writes or spec.repeatable
    assert spec.since in (2, 3)


@every_command
def test_names_on_the_wire_are_camel_case(spec: Spec) -> None:
    for name in fields_of(spec.request):
        assert name.isidentifier()
        assert "_" not in name
        assert name[0].islower()


def test_push_is_a_command_and_has_the_fields_of_a_batch_entry() -> None:
    """It inherits from JobFields, so what Command gives it by hand must not drift."""
    push, command, entry = fields_of(Push), fields_of(Command), fields_of(JobFields)
    own = {"queue", "idempotencyKey", "idempotencyHash", "idempotencyAge"}
    assert push.keys() == command.keys() | entry.keys() | own
    for name, field in {**command, **entry}.items():
        assert (push[name].type, push[name].default) == (field.type, field.default)


def test_the_commands_of_the_first_milestone_are_there() -> None:
    core = "PUSH PUSHB PULL PULLB ACK ACKB FAIL JobHeartbeat JobHeartbeatB Progress GetProgress"
    query = "GetJob GetState GetResult GetJobs GetJobCounts Count Dlq RetryDlq"
    server = "Hello Auth Ping ListQueues Stats"
    assert set(f"{core} {query} {server}".split()) <= COMMANDS.keys()
