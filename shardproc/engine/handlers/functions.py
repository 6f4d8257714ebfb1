"""DeclareFunctions, RemoveFunction, ListFunctions and GetFunction: what apps declare about their jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import json
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import replace

from bunqueue.model.functions import (
    ACCEPT,
    MAX_BYTES,
    MAX_OPTIONS_BYTES,
    AppFunctions,
    Function,
    QueueFunctions,
)
from bunqueue.model.job import NIL
from bunqueue.model.json_schema import words
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Ok
from bunqueue.protocol.commands.functions import (
    DeclareFunctions,
    FunctionFields,
    FunctionReply,
    FunctionsReply,
    FunctionView,
    GetFunction,
    ListFunctions,
    RemoveFunction,
)

from ..lookup import known_queue
from ..memory import queue_configs
from ..memory.functions import Functions, is_forgotten
from ..memory.queue_configs import of_queue
from ..registry import at_queue, handles, recovers, when_obliterated
from ..scoped import allows
from ..slices import Steps, sliced
from ..state import Client, QueueState, State
from .push_checks import check_data, check_keeping
from .workflows import types

FUNCTIONS_A_SLICE = 20  # shown, about 0.5 ms
MAX_SHOWN_ARGUMENTS = 20

_encode, _decode = Encoder().encode, Decoder().decode
_decode_stored = json.Decoder(QueueFunctions).decode


@handles(DeclareFunctions)
def declare(state: State, client: Client, command: DeclareFunctions) -> Ok:
    known_queue(state, command.queue)
    config = of_queue(state, command.queue, QueueFunctions)
    before = config.apps.get(command.app)
    known = before.functions if before is not None else {}
    functions = {name: each for name, each in _retired(known, state.now) if not is_forgotten(each, state.now)}
    for place, fields in enumerate(command.functions):
        functions[fields.name] = _declared(fields, known.get(fields.name), state.now, f"functions[{place}]")
    _check_names(command)
    declared = AppFunctions(
        functions, state.now, command.invalid_jobs, command.any_name, command.version, command.by
    )
    if before is not None and _is_same(before, declared):
        return Ok()
    apps = {**config.apps, command.app: declared}
    if not functions and command.invalid_jobs == ACCEPT and not command.any_name:
        del apps[command.app]
    _store(state, command.queue, QueueFunctions(apps))
    return Ok()


def _is_same(before: AppFunctions, after: AppFunctions) -> bool:
    """Whether a declaration says nothing new; by which program it comes does not matter."""
    return replace(before, declared=after.declared, by=after.by) == after


def _retired(known: Mapping[str, Function], now: int) -> Iterator[tuple[str, Function]]:
    """What was declared before, as functions that are not declared any more."""
    for name, function in known.items():
        yield name, function if function.retired is not None else replace(function, retired=now)


def _declared(fields: FunctionFields, before: Function | None, now: int, where: str) -> Function:
    """A function as it is stored.  CommandError for an invalid declaration."""
    options = b""
    if fields.options is not None:
        check_keeping(fields.options, f"{where}.options.")
        if fields.options.on_dead is not None:
            check_data(bytes(fields.options.on_dead.data), f"{where}.options.onDead: ")
        options = _encode(fields.options)
        if len(options) > MAX_OPTIONS_BYTES:
            raise _too_large(f"{where}.options", len(options), MAX_OPTIONS_BYTES)
    schema = b"" if bytes(fields.schema) == NIL else types.checked(fields.schema, f"{where}.schema")
    new = Function(now, 1, fields.aliases, fields.description, options, schema)
    if before is None:
        return new
    same = replace(before, changed=now, revision=1, retired=None) == new
    return replace(before, retired=None) if same else replace(new, revision=before.revision + 1)


def _check_names(command: DeclareFunctions) -> None:
    """CommandError if two functions of an app have the same name."""
    seen: set[str] = set()
    for place, fields in enumerate(command.functions):
        for name in (fields.name, *fields.aliases):
            if name in seen:
                text = f"functions[{place}]: another function of the app is called {name!r}, too"
                raise CommandError(text, Code.INVALID_FIELD, field=f"functions[{place}].name", value=name)
            seen.add(name)


def _too_large(what: str, size: int, bound: int) -> CommandError:
    text = f"{what} has {size:,} bytes, at most {bound:,} are allowed"
    return CommandError(text, Code.INVALID_FIELD, field=what, value=size, bound=bound)


def _store(state: State, queue: str, config: QueueFunctions) -> None:
    size = len(json.encode(config))
    if size > MAX_BYTES:
        raise _too_large("functions", size, MAX_BYTES)
    queue_configs.store(state, queue, config, size)
    _set(state, queue, config)


def _set(state: State, queue: str, config: QueueFunctions) -> None:
    functions = state.functions.setdefault(queue, Functions())
    functions.set(config)
    if not config.apps:
        del state.functions[queue]
    known = state.queues.get(queue)
    if known is not None:
        known.functions = state.functions.get(queue)


@handles(RemoveFunction)
def remove(state: State, client: Client, command: RemoveFunction) -> Ok:
    functions, _ = _find(state, command.queue, command.name, alias=False)
    apps = {}
    for app, declared in functions.config.apps.items():
        rest = {name: each for name, each in declared.functions.items() if name != command.name}
        if rest or declared.invalid_jobs != ACCEPT or declared.any_name:
            apps[app] = replace(declared, functions=rest)
    _store(state, command.queue, QueueFunctions(apps))
    return Ok()


@handles(ListFunctions)
@sliced
def list_functions(state: State, client: Client, command: ListFunctions) -> Steps:
    if command.queue is not None:
        known_queue(state, command.queue)
    some = state.functions if command.queue is None else [command.queue]
    queues = sorted(queue for queue in some if allows(client, queue))
    found: list[FunctionView] = []
    for queue in queues:
        functions = state.functions.get(queue)
        for name, known in sorted(functions.names.items()) if functions is not None else ():
            if name == known.name and functions is not None and functions.find(name, state.now):
                found.append(_view(queue, functions, name))
                if len(found) % FUNCTIONS_A_SLICE == 0:
                    yield
    return FunctionsReply(functions=found)


@handles(GetFunction)
def get_function(state: State, client: Client, command: GetFunction) -> FunctionReply:
    functions, name = _find(state, command.queue, command.name)
    view = _view(command.queue, functions, name)
    view.schema = functions.names[name].schema
    return FunctionReply(function=view, refused=functions.refused, warned=functions.warned)


def _find(state: State, queue: str, name: str, *, alias: bool = True) -> tuple[Functions, str]:
    """The functions of a queue, and the name of one of them.  CommandError if it does not exist."""
    known_queue(state, queue)
    functions = state.functions.get(queue)
    known = functions.find(name, state.now) if functions is not None else None
    if functions is None or known is None or not (alias or known.name == name):
        text = f"no app has declared a function {name!r} for queue {queue!r}"
        raise CommandError(text, Code.FUNCTION_NOT_FOUND, field="name", value=name)
    return functions, known.name


def _view(queue: str, functions: Functions, name: str) -> FunctionView:
    known = functions.names[name]
    function, declared = known.function, functions.config.apps[known.app]
    return FunctionView(
        queue=queue,
        name=name,
        aliases=function.aliases,
        description=function.description,
        options=_decode(function.options) if function.options else {},
        arguments=_arguments(known.schema),
        app=known.app,
        version=declared.version,
        by=declared.by,
        declared_ms=float(declared.declared),
        revision=function.revision,
        changed_ms=float(function.changed),
        retired_ms=None if function.retired is None else float(function.retired),
        invalid_jobs=declared.invalid_jobs,
    )


def _arguments(schema: Mapping[str, Any] | None) -> str:
    """What the data of a job has to be, in one line."""
    if schema is None:
        return "anything"
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return words(schema)
    required = schema.get("required")
    needed = required if isinstance(required, list) else []
    shown = [
        f"{name}: {words(each, schema)}" + ("" if name in needed else " (optional)")
        for name, each in list(properties.items())[:MAX_SHOWN_ARGUMENTS]
    ]
    return ", ".join(shown) + (", ..." if len(properties) > MAX_SHOWN_ARGUMENTS else "")


@recovers("functions", at_queue)
def recover(state: State, key: str, value: str) -> None:
    config = _decode_stored(value)
    state.configs[QueueFunctions, key] = config
    _set(state, key, config)


@when_obliterated
def forget(state: State, queue: QueueState) -> None:
    """Forget the functions of a queue, whose records are forgotten with its other settings."""
    state.functions.pop(queue.name, None)
    queue.functions = None
