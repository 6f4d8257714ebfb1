"""Explains why a value cannot be encoded, and where, for error messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import NamedTuple

from bunqueue.client.conversion.encoding import encode
from bunqueue.client.conversion.raised import text_of

MAX_STEPS = 100  # in the path to a wrong value

_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType, partial)


class Unencodable(NamedTuple):
    """The innermost value that cannot be encoded."""

    path: str  # its path: "['order'].lines[0]"; empty for the whole value
    kind: str  # the name of its class
    problem: str

    def __str__(self) -> str:
        where = f" at {self.path}" if self.path else ""
        return f"{self.kind}{where} ({self.problem})"


def why(value: object, error: BaseException) -> Unencodable:
    """Why encoding `value` raised `error`. Never raises."""
    try:
        path, wrong, is_circle = _find(value)
        return Unencodable(path, type(wrong).__name__, _problem(wrong, is_circle, error))
    except BaseException:  # the search runs code of foreign types as well
        return Unencodable("", type(value).__name__, text_of(error))


def _problem(wrong: object, is_circle: bool, error: BaseException) -> str:
    if is_circle:
        return "it contains itself"
    if isinstance(wrong, str):
        return (
            f"{wrong[:40]!a} has half a character, a lone surrogate, which no text may have; "
            "of the name of a file send os.fsencode(name)"
        )
    if isinstance(wrong, int):
        return "it is beyond 64 bits; send it as text"
    if isinstance(wrong, _FUNCTIONS):
        return "jobs carry data, and no functions: a job names the function that runs it"
    return text_of(error)


def _find(value: object) -> tuple[str, object, bool]:
    """The innermost wrong value, the path to it, and whether it contains itself."""
    path = ""
    above: set[int] = set()
    for _ in range(MAX_STEPS):
        if id(value) in above:
            return path, value, True
        above.add(id(value))
        for step, part in _parts(value):
            if not _is_encodable(part):
                path, value = path + step, part
                break
        else:
            break
    return path, value, False


def _is_encodable(value: object) -> bool:
    try:
        encode(value)
    except BaseException:
        return False
    return True


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield f"[key {key!a:.50}]", key
            yield f"[{key!a:.50}]", each
    elif isinstance(value, list | tuple | set | frozenset):
        for index, each in enumerate(value):
            yield f"[{index}]", each
    else:
        kind = type(value)
        names = getattr(kind, "__struct_fields__", ()) or getattr(kind, "__dataclass_fields__", ())
        for name in names:
            yield f".{name}", getattr(value, name, None)
