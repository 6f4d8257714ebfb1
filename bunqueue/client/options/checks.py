"""Checks of user input: every refusal is an OptionError that names the option, the value and what is allowed.

The bounds of wire values come from the declarations of the commands.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from bunqueue.client.callables import GENERATOR, is_generator
from bunqueue.client.connection.address import endpoint as endpoint
from bunqueue.client.connection.options import Duration, milliseconds, refused, shown
from bunqueue.errors import OptionError
from bunqueue.model.decoders import resolved
from bunqueue.model.names import MAX_QUEUE_NAME, queue_name_problem
from bunqueue.protocol.commands.base import MAX_JOB_NAME, CommandError, Key
from bunqueue.protocol.commands.core import GroupId, IdempotencyKey
from bunqueue.protocol.lenient import MAX_INTEGER, clean

T = TypeVar("T")
C = TypeVar("C", bound=Struct)

_encode = msgspec.msgpack.Encoder().encode


class _Keyed(Struct):
    idempotency_key: IdempotencyKey


class _Grouped(Struct):
    group: GroupId


class _Own(Struct):
    job_id: Key


def queue_name(name: str) -> str:
    """Return `name` if it is a valid queue name."""
    problem = queue_name_problem(name, anywhere=True)  # only the server knows whether it has namespaces
    if problem:
        allowed = f"1 to {MAX_QUEUE_NAME} of the characters a-z A-Z 0-9 _ - . :"
        raise OptionError(f"{problem}: {shown(name)}; give {allowed}", field="queue", value=name)
    return name


def job_name(name: str, index: int | None = None) -> str:
    """Return `name` if it is a valid job name; `index` is the job's position among many."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_JOB_NAME:
        where = "" if index is None else f"job {index}: "
        raise OptionError(
            f"{where}name: a job cannot be called {shown(name)}; give a text of 1 to {MAX_JOB_NAME} "
            f"characters, such as 'welcome'",
            field="name" if index is None else f"jobs[{index}].name",
            value=name,
            bound=MAX_JOB_NAME,
        )
    return name


def group_id(group: str) -> str:
    """Return `group` if it is a valid group id."""
    wire(_Grouped, {"group": group})
    return group


def text(value: str, name: str) -> str:
    """Return `value` if it is not empty: an empty text would count as absent."""
    if value == "":
        raise refused(name, value, "is not allowed; give a text that is not empty, or None")
    return value


def own_id(value: str, name: str) -> str:
    """Return `value` if it is a valid job id."""
    wire(_Own, {"job_id": text(value, name)}, job_id=name)
    return value


def idempotency_key(key: str) -> str:
    """Return `key` if it is a valid idempotency key."""
    wire(_Keyed, {"idempotency_key": key})
    return key


def whole(name: str, value: int, lowest: int = 1) -> int:
    """Return `value` if it is a whole number, at least `lowest`, that every client can read."""
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise refused(name, value, f"is not allowed; give a whole number from {lowest} on", lowest)
    if value >= MAX_INTEGER:
        raise refused(
            name, value, f"is not allowed; give a whole number up to {MAX_INTEGER - 1}", MAX_INTEGER - 1
        )
    return value


def function(name: str, value: Any) -> Any:
    """Return `value` if it is None or a callable that runs when called."""
    if value is not None and not callable(value):
        raise refused(name, value, "cannot be called; give a function")
    if value is not None and is_generator(value):
        raise refused(name, value, GENERATOR)
    return value


def switch(name: str, value: bool) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, bool):
        raise refused(name, value, "is not allowed; give True or False")
    return value


def one(name: str, value: T, kind: type[T]) -> T:
    """Return `value` if it is an instance of `kind`."""
    if not isinstance(value, kind):
        raise refused(name, value, f"is not allowed; give a bunqueue.{kind.__name__}")
    return value


def given(value: T | None) -> T | UnsetType:
    """`value`, or UNSET to leave a field out of a command."""
    return UNSET if value is None else value


def given_span(value: Duration | UnsetType | None, name: str) -> float | UnsetType:
    """Like `given`, for a duration, in ms."""
    return UNSET if value is None or isinstance(value, UnsetType) else milliseconds(value, name)


def one_of(name: str, value: str, known: Collection[str]) -> None:
    """Refuse a `value` that is not one of `known`."""
    if not isinstance(value, str) or value not in known:
        raise refused(name, value, f"is unknown; there are {', '.join(known)}", list(known))


def states(known: Collection[str], wanted: list[str]) -> None:
    """Refuse states that do not exist."""
    for state in wanted:
        one_of("state", state, known)


def settings(declared: type[Struct], changes: Struct) -> None:
    """Check what `changes` sets against the bounds of a configuration."""
    _check(declared, _set_fields(changes), {})


def wire(declared: type[Struct], values: Mapping[str, Any], **called: str) -> None:
    """Check `values`, by the fields of a struct, against its declaration. `called` maps the fields that users
    know by another name to that name.
    """
    try:
        msgspec.convert(values, resolved(declared))
    except (msgspec.ValidationError, OverflowError):
        _explain_all(declared, values, called)


def nested(declared: type[Struct], fields: dict[str, object], name: str, **called: str) -> dict[str, object]:
    """The fields of a map within the options, checked; `called` as for `wire`."""
    try:
        wire(declared, fields, **called)
    except OptionError as error:
        raise error.within(name) from None
    return fields


def checked(command: C, **called: str) -> C:
    """Return `command` if its values are within their declared bounds; `called` as for `wire`."""
    _check(type(command), _set_fields(command), called)
    return command


def _set_fields(struct: Struct) -> dict[str, Any]:
    """The fields that are set to a plain value."""
    values = {name: getattr(struct, name) for name in struct.__struct_fields__}
    return {
        name: value
        for name, value in values.items()
        if value is not UNSET and not isinstance(value, Raw | Struct)
    }


def _check(declared: type[Struct], values: Mapping[str, Any], called: Mapping[str, str]) -> None:
    try:
        msgspec.convert(values, _loose(declared, ()))
    except (msgspec.ValidationError, OverflowError):
        _explain_all(declared, values, called)


@cache
def _loose(declared: type[Struct], called: tuple[tuple[str, str], ...]) -> type[Struct]:
    """A struct with the same fields, each checked on its own, under the names that users know."""
    names = dict(called)
    fields = [
        (names.get(field.name, field.name), field.type, None) for field in msgspec.structs.fields(declared)
    ]
    return resolved(msgspec.defstruct("_Loose", fields))


def _explain_all(declared: type[Struct], values: Mapping[str, Any], called: Mapping[str, str]) -> None:
    loose = _loose(declared, tuple(called.items()))
    for name, value in values.items():
        _explain(loose, called.get(name, name), value)


def refusal(text: str, error: CommandError, value: object) -> OptionError:
    """The error that a server would report for a value, raised before anything is sent."""
    field, bound = error.field, None if error.bound is UNSET else error.bound
    return OptionError(text, field=None if isinstance(field, UnsetType) else field, value=value, bound=bound)


def _explain(declared: type[Struct], name: str, value: object) -> None:
    try:
        # MessagePack has no integers that large, but the error should name the bound.
        large = isinstance(value, int) and abs(value) >= MAX_INTEGER
        clean(declared, {name: Raw(_encode(float(value) if large else value))})  # type: ignore[arg-type]
    except CommandError as error:
        text = str(error)
        problem = text if text.startswith(name) else f"{name}: {text}"
        raise refusal(f"{problem}, not {shown(value)}", error, value) from None
    except Exception as error:  # foreign types, numbers beyond 64 bits
        raise refused(name, value, f"is not allowed ({error})") from None
