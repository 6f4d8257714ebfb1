"""Finds texts in requests by what they are: names of queues, ids of jobs, conditions on what jobs hold.

Derived from the types of the fields (`Mark`), once for each command. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from msgspec import UNSET, Struct

from bunqueue.model.marks import Mark

Path = tuple[str, "Step"]  # the attribute of a struct, and where its marks are


class Step(NamedTuple):
    """Where marked texts are in a value: it is one, or its entries, keys or attributes lead to some."""

    is_marked: bool = False
    entries: Step | None = None
    keys: bool = False
    struct: type[Struct] | None = None


def found(mark: Mark, request: Struct) -> Iterator[str]:
    """The texts in a request that are of this kind."""
    for name, step in paths(type(request), mark):
        value = getattr(request, name)
        if value is not None and value is not UNSET:
            yield from _within(mark, value, step)


def _within(mark: Mark, value: Any, step: Step) -> Iterator[str]:
    if step.is_marked and isinstance(value, str):
        yield value
    elif step.struct is not None and isinstance(value, step.struct):
        yield from found(mark, value)
    elif isinstance(value, list) and step.entries is not None:
        for entry in value:
            yield from _within(mark, entry, step.entries)
    elif isinstance(value, dict):
        if step.keys:
            yield from value
        if step.entries is not None:
            for entry in value.values():
                yield from _within(mark, entry, step.entries)


def rename(mark: Mark, request: Struct, new: Callable[[str], str]) -> None:
    """Replace the texts of a kind in a request."""
    for name, step in paths(type(request), mark):
        setattr(request, name, _renamed(mark, getattr(request, name), step, new))


def _renamed(mark: Mark, value: Any, step: Step, new: Callable[[str], str]) -> Any:
    if step.is_marked and isinstance(value, str):
        return new(value)
    if step.struct is not None and isinstance(value, step.struct):
        rename(mark, value, new)
    elif isinstance(value, list) and step.entries is not None:
        return [_renamed(mark, entry, step.entries, new) for entry in value]
    elif isinstance(value, dict):
        entries = step.entries or Step()
        return {
            (new(key) if step.keys else key): _renamed(mark, entry, entries, new)
            for key, entry in value.items()
        }
    return value


def given(request: Struct, mark: Mark) -> str | None:
    """The wire name of a marked field that a request has set, here or in a struct within; None: it has set
    none."""
    config, defaults = type(request).__struct_fields__, type(request).__struct_defaults__
    optional = dict(zip(config[len(config) - len(defaults) :], defaults, strict=True))
    names = dict(zip(config, type(request).__struct_encode_fields__, strict=True))
    for name, step in paths(type(request), mark):
        value = getattr(request, name)
        if value is None or value is UNSET or (name in optional and value == optional[name]):
            continue
        if step.struct is None:
            return names[name]
        if isinstance(value, step.struct) and (inner := given(value, mark)) is not None:
            return f"{names[name]}.{inner}"
    return None


@cache
def paths(struct: type[Struct], mark: Mark) -> tuple[Path, ...]:
    """The attributes of a struct that have or lead to such a text."""
    hints = get_type_hints(struct, include_extras=True)
    steps = ((name, _step(hints[name], mark)) for name in struct.__struct_fields__)
    return tuple((name, step) for name, step in steps if step is not None)


def _step(hint: Any, mark: Mark) -> Step | None:
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *more = get_args(hint)
        return Step(is_marked=True) if mark in more else _step(inner, mark)
    if origin in (Union, UnionType):
        return next(filter(None, (_step(part, mark) for part in get_args(hint))), None)
    if origin is list:
        entries = _step(get_args(hint)[0], mark)
        return None if entries is None else Step(entries=entries)
    if origin is dict:
        key, value = (_step(part, mark) for part in get_args(hint))
        return None if key is None and value is None else Step(entries=value, keys=key is not None)
    if isinstance(hint, type) and issubclass(hint, Struct) and paths(hint, mark):
        return Step(struct=hint)
    return None
