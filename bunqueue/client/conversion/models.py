"""Pydantic types: conversion to plain data and back. Imported on first use.

Fields are sent under their Python names, and accepted under these or their aliases. So a model arrives
unchanged, whatever aliases it has for reading and writing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pydantic
import pydantic_core
from pydantic import BaseModel, TypeAdapter

from bunqueue.client.conversion.carriable import records_of
from bunqueue.client.conversion.mismatch import Mismatch

OLDEST = (2, 11)  # the first version whose validation can accept names besides aliases

if tuple(map(int, pydantic.VERSION.split(".")[:2])) < OLDEST:
    raise ImportError(
        f"pydantic {pydantic.VERSION} is too old for the types of jobs; pip install 'bunqueue[pydantic]' "
        f"brings a version from {OLDEST[0]}.{OLDEST[1]} on"
    )


def dumped(value: object) -> Any:
    """A value of a Pydantic type as something the encoder accepts, such as the map of a model's fields."""
    if hasattr(value, "get_secret_value"):  # else it would arrive as asterisks
        return value.get_secret_value()
    if isinstance(value, BaseModel):
        return value.model_dump(by_alias=False, round_trip=True)
    kind: Any = type(value)
    return adapter(kind).dump_python(value, mode="json", by_alias=False, round_trip=True)


@lru_cache(maxsize=1000)
def adapter(hint: Any) -> TypeAdapter[Any]:
    """The validator for an annotation. Raises TypeError for one that Pydantic cannot use."""
    try:
        found = TypeAdapter(hint)
        if any(map(_takes_anything, records_of(hint))):
            found.json_schema()  # fails for a field of a class that cannot be sent
    except pydantic.errors.PydanticUserError as error:
        problem = str(error).partition("\n")[0]
        raise TypeError(problem) from None
    return found


def _takes_anything(kind: type) -> bool:
    """Whether a model may have fields of classes that Pydantic does not know."""
    return issubclass(kind, BaseModel) and bool(kind.model_config.get("arbitrary_types_allowed"))


def validated(hint: Any, plain: Any) -> Any:
    """Plain data as a value of an annotation. Raises Mismatch."""
    try:
        return adapter(hint).validate_python(plain, by_alias=True, by_name=True)
    except pydantic.ValidationError as error:
        first = error
    # A strict model takes text for a UUID only in JSON, which has no UUIDs of its own.
    try:
        return adapter(hint).validate_json(pydantic_core.to_json(plain), by_alias=True, by_name=True)
    except pydantic.ValidationError as error:
        raise _mismatch(error) from None
    except (ValueError, TypeError):  # bytes that are not text
        raise _mismatch(first) from None


def _mismatch(error: pydantic.ValidationError) -> Mismatch:
    """The first of its errors, in msgspec's wording if it has one."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    steps, problem = first["loc"], first["msg"]
    if first["type"] == "missing":
        steps, problem = steps[:-1], f"Object missing required field `{steps[-1]}`"
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return Mismatch(problem, path.removeprefix("."))
