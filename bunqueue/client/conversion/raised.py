"""Inspects an exception that user code has raised, without trusting it.

An exception is a user's object: its `__str__`, `__getattr__`, properties, even its `__class__` may raise
anything, or exit. The client inspects exceptions only through this module; what cannot be read counts as
absent. No function here raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from bunqueue.errors import Unrecoverable

_FINAL = "__bunqueue_final__"

# Python's own attributes of an exception, even if its class overrides these names.
_attributes = BaseException.__dict__["__dict__"].__get__
_trace = BaseException.__dict__["__traceback__"].__get__
_cause = BaseException.__dict__["__cause__"].__get__
_context = BaseException.__dict__["__context__"].__get__
_members = BaseExceptionGroup.__dict__["exceptions"].__get__

MAX_ERROR = 2_000  # characters of an error's text; enough for a person, small enough for every list


def is_a(error: BaseException, *kinds: type[BaseException]) -> bool:
    """`isinstance` without asking the object for its `__class__`."""
    return issubclass(type(error), kinds)


def is_honest(error: BaseException) -> bool:
    """Whether `__class__` is its real class, so that `isinstance` is reliable."""
    try:
        return error.__class__ is type(error)
    except BaseException:
        return False


def asked(error: BaseException, name: str) -> Any:
    """An attribute that a user may have set in any way; None if it does not exist or reading it raises."""
    try:
        return getattr(error, name, None)
    except BaseException:
        return None


def mark(error: BaseException, name: str, value: object) -> None:
    """Store a value on the exception."""
    _attributes(error)[name] = value


def marked(error: BaseException, name: str) -> Any:
    """The value stored by `mark`, or None."""
    return _attributes(error).get(name)


def trace_of(error: BaseException) -> TracebackType | None:
    """Its traceback."""
    found: TracebackType | None = _trace(error)
    return found


def cause_of(error: BaseException) -> BaseException | None:
    """The exception that it was raised from."""
    found: BaseException | None = _cause(error)
    return found


def text_of(error: BaseException) -> str:
    """`TypeError: message`, on one or more lines, limited in length."""
    name = _name_of(error)
    try:
        message = well_formed(str(error))
        if not message and name == "CancelledError":
            message = "the code of the job has cancelled it, not its worker"
    except BaseException as problem:
        message = f"(its text cannot be had: {_name_of(problem)})"
    text = f"{name}: {message}" if message else name
    return text if len(text) <= MAX_ERROR else text[: MAX_ERROR - 3] + "..."


def _name_of(error: BaseException) -> str:
    try:
        return well_formed(type.__getattribute__(type(error), "__name__"))
    except BaseException:
        return "an exception without a name"


def well_formed(text: str) -> str:
    """Text that can be stored and sent: lone surrogates, which file names may have, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def is_final(error: BaseException) -> bool:
    """Whether another attempt is pointless."""
    return is_a(error, Unrecoverable) or marked(error, _FINAL) is True


def made_final(error: BaseException) -> BaseException:
    """Mark the error so that no other attempt follows, and return it."""
    mark(error, _FINAL, True)
    return error


def causes_of(error: BaseException) -> Iterable[BaseException]:
    """The error, its causes and contexts, and the members of groups, each once."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        todo += [_cause(each), _context(each)]
        if is_a(each, BaseExceptionGroup):
            todo += _members(each)
