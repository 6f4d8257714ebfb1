"""What users may give: every refusal is an OptionError that names the option, the value and what is allowed.

The bounds of what goes over the wire are those that the commands are declared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from bunqueue.client.address import endpoint as endpoint
from bunqueue.client.connection_options import Duration, milliseconds, shown
from bunqueue.errors import OptionError
from bunqueue.model.names import MAX_QUEUE_NAME, queue_name_problem
from bunqueue.protocol.commands.base import CommandError
from bunqueue.protocol.commands.core import IdempotencyKey
from bunqueue.protocol.lenient import MAX_INTEGER, clean

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode


class _Keyed(Struct):
    idempotency_key: IdempotencyKey


def queue_name(name: str) -> str:
    """`name`, if it is one."""
    problem = queue_name_problem(name)
    if problem:
        allowed = f"1 to {MAX_QUEUE_NAME} of the characters a-z A-Z 0-9 _ - . :"
        raise OptionError(f"{problem}: {shown(name)}; give {allowed}")
    return name


def job_name(name: str) -> str:
    """`name`, if a job may be called so."""
    if not isinstance(name, str) or not name:
        raise OptionError(f"name: a job cannot be called {shown(name)}; give a text, such as 'welcome'")
    return name


def idempotency_key(key: str) -> str:
    """`key`, if it is one."""
    wire(_Keyed, {"idempotency_key": key})
    return key


def whole(name: str, value: int, lowest: int = 1) -> int:
    """`value`, if it is a whole number from `lowest` on."""
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise OptionError(f"{name}: {shown(value)} is not allowed; give a whole number from {lowest} on")
    return value


def given(value: T | None) -> T | UnsetType:
    """`value`, or what leaves a field out of a command."""
    return UNSET if value is None else value


def given_span(value: Duration | UnsetType | None, name: str) -> float | UnsetType:
    """The same for a time, in ms."""
    return UNSET if value is None or isinstance(value, UnsetType) else milliseconds(value, name)


def states(known: tuple[str, ...], wanted: list[str]) -> None:
    """Whether all wanted states exist."""
    for state in wanted:
        if state not in known:
            raise OptionError(f"state: there is none called {shown(state)}; there are {', '.join(known)}")


def wire(declared: type[Struct], values: Mapping[str, Any]) -> None:
    """Check `values` by the declaration of a struct whose fields have their names."""
    try:
        msgspec.convert(values, declared)
    except (msgspec.ValidationError, OverflowError):
        for name, value in values.items():
            _explain(_loose(declared), name, value)


@cache
def _loose(declared: type[Struct]) -> type[Struct]:
    """The same fields, each by itself, under their names in Python."""
    fields = [(field.name, field.type, None) for field in msgspec.structs.fields(declared)]
    return msgspec.defstruct("_Loose", fields)


def _explain(declared: type[Struct], name: str, value: object) -> None:
    try:
        # MessagePack has no number that large, but it is the bound that one should be told.
        large = isinstance(value, int) and abs(value) >= MAX_INTEGER
        clean(declared, {name: Raw(_encode(float(value) if large else value))})  # type: ignore[arg-type]
    except CommandError as error:
        text = str(error)
        problem = text if text.startswith(name) else f"{name}: {text}"
        raise OptionError(f"{problem}, not {shown(value)}") from None
    except Exception as error:  # foreign types, numbers beyond 64 bits
        raise OptionError(f"{name}: {shown(value)} is not allowed ({error})") from None
