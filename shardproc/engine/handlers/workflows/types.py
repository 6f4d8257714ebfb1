"""SetSignalTypes, and whether the data of a signal fits: the types that programs declare for the signals of
their workflows, and the schemas that single waits give.

Declared types take precedence.  The schema of a wait applies as long as the running code may be the code that
gave it: once another program has taken over, it no longer counts against a signal.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw
from msgspec import json as msgspec_json
from msgspec.msgpack import Decoder, Encoder

from bunqueue.model.job import NIL, Job
from bunqueue.model.json_schema import Misfit, misfit
from bunqueue.model.workflow import (
    MAX_SCHEMA_BYTES,
    MAX_TYPES_BYTES,
    DeclaredTypes,
    SignalTypes,
    WaitSchema,
)
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Ok
from bunqueue.protocol.commands.workflows import SetSignalTypes
from bunqueue.protocol.encoded import is_envelope
from bunqueue.protocol.heads import is_map
from bunqueue.protocol.readable import check_readable, is_readable

from ...lookup import known_queue
from ...memory import queue_configs
from ...registry import at_queue, handles, recovers
from ...state import Client, State

_decode, _encode = Decoder().decode, Encoder().encode
_decode_stored = Decoder(WaitSchema).decode


@handles(SetSignalTypes)
def set_signal_types(state: State, client: Client, command: SetSignalTypes) -> Ok:
    known_queue(state, command.queue)
    before = queue_configs.of_queue(state, command.queue, SignalTypes).workflows
    workflows = dict(before)
    for name, schemas in command.workflows.items():
        signals = {
            signal: _decode(checked(raw, f"workflows.{name}.{signal}")) for signal, raw in schemas.items()
        }
        known = before.get(name)
        same = known is not None and known.by == command.by
        workflows[name] = DeclaredTypes(
            signals, command.by, known.since if same and known is not None else state.now
        )
    if workflows != before:
        types = SignalTypes(workflows)
        size = len(msgspec_json.encode(types))
        if size > MAX_TYPES_BYTES:
            text = f"workflows: what is declared for queue {command.queue} has {size} bytes, at most "
            raise CommandError(
                f"{text}{MAX_TYPES_BYTES} are allowed",
                Code.INVALID_FIELD,
                field="workflows",
                value=size,
                bound=MAX_TYPES_BYTES,
            )
        queue_configs.store(state, command.queue, types, size)
    return Ok()


@recovers("signal_types", at_queue)
def recover(state: State, key: str, value: str) -> None:
    state.configs[SignalTypes, key] = msgspec_json.decode(value, type=SignalTypes)


def checked(raw: Raw, field: str) -> bytes:
    """A schema as it is stored.  CommandError for an invalid one."""
    data = bytes(raw)
    if len(data) > MAX_SCHEMA_BYTES:
        text = f"{field} has {len(data)} bytes, at most {MAX_SCHEMA_BYTES} are allowed"
        raise CommandError(text, Code.INVALID_FIELD, field=field, value=len(data), bound=MAX_SCHEMA_BYTES)
    if not is_map(data):
        text = f"{field} must be a JSON Schema: an object"
        raise CommandError(text, Code.INVALID_FIELD, field=field, bound="an object")
    if not is_readable(data):
        check_readable(data, field)
    return data


def stored(state: State, raw: Raw, field: str = "schema") -> bytes | None:
    """The stored form of a wait's schema; None without one.  CommandError for an invalid one."""
    return None if bytes(raw) == NIL else _encode(WaitSchema(state.now, Raw(checked(raw, field))))


def schema_of(state: State, job: Job, signal: str, kept: bytes | None) -> dict[str, Any] | None:
    """The schema for the data of a signal, if one is known; ``kept`` is what its wait has stored."""
    declared = queue_configs.of_queue(state, job.queue, SignalTypes).workflows.get(job.name)
    if declared is not None and signal in declared.signals:
        return declared.signals[signal]
    if kept is None:
        return None
    wait = _decode_stored(kept)
    if declared is not None and wait.at < declared.since:
        return None
    found: dict[str, Any] = _decode(wait.schema)
    return found


def unfit(state: State, job: Job, signal: str, kept: bytes | None, data: bytes) -> Misfit | None:
    """Why data does not fit a wait.  Data encoded by a program can only be checked by that program."""
    schema = schema_of(state, job, signal, kept)
    if schema is None:
        return None
    value = _decode(data)
    return None if is_envelope(value) else misfit(schema, value)


def words(signal: str, problem: Misfit) -> str:
    where = f" at {problem.path}" if problem.path else ""
    return f"the data of signal {signal} is {problem.found}{where}, and {problem.expected} is expected"


def refusal(job: Job, signal: str, problem: Misfit) -> CommandError:
    """The error for the sender."""
    dot = "" if not problem.path or problem.path.startswith("[") else "."
    return CommandError(
        f"{words(signal, problem)}: workflow {job.id} was not sent it",
        Code.SIGNAL_UNFIT,
        field=f"data{dot}{problem.path}",
        value=problem.found,
        bound=problem.expected,
    )
