"""What user code has raised, looked at without trusting it.

An exception is a user's object: its `__str__`, `__getattr__`, properties, even its `__class__` may raise
anything, or exit. Whatever the client wants to know of one is asked here, and what cannot be had is nothing.
No function here raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

from bunqueue.errors import Unrecoverable

_FINAL = "__bunqueue_final__"

# What Python itself keeps with an exception, whatever its class has put in place of these names.
_attributes = BaseException.__dict__["__dict__"].__get__
_trace = BaseException.__dict__["__traceback__"].__get__
_cause = BaseException.__dict__["__cause__"].__get__
_context = BaseException.__dict__["__context__"].__get__
_members = BaseExceptionGroup.__dict__["exceptions"].__get__

MAX_ERROR = 2_000  # characters of an error's text; enough for a person, small enough for every list


def is_a(error: BaseException, *kinds: type[BaseException]) -> bool:
    """`isinstance`, which would ask an object for its `__class__`."""
    return issubclass(type(error), kinds)


def is_honest(error: BaseException) -> bool:
    """Whether its class is the one that it says, so that `isinstance` can be asked."""
    try:
        return error.__class__ is type(error)
    except BaseException:
        return False


def asked(error: BaseException, name: str) -> Any:
    """An attribute that a user may have given it in any way; None when there is none, or looking raises."""
    try:
        return getattr(error, name, None)
    except BaseException:
        return None


def mark(error: BaseException, name: str, value: object) -> None:
    """Keep something with it."""
    _attributes(error)[name] = value


def marked(error: BaseException, name: str) -> Any:
    """What `mark` has kept; None without."""
    return _attributes(error).get(name)


def trace_of(error: BaseException) -> TracebackType | None:
    """Its traceback."""
    found: TracebackType | None = _trace(error)
    return found


def cause_of(error: BaseException) -> BaseException | None:
    """What it was raised from."""
    found: BaseException | None = _cause(error)
    return found


def text_of(error: BaseException) -> str:
    """`TypeError: message`, on one or more lines, bounded."""
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
    """Text that can be stored and sent: half characters, as names of files may have, are written out."""
    return text.encode("utf-8", "backslashreplace").decode()


def is_final(error: BaseException) -> bool:
    """Whether no other attempt would help."""
    return is_a(error, Unrecoverable) or marked(error, _FINAL) is True


def made_final(error: BaseException) -> BaseException:
    """The error, marked so that no other attempt follows it."""
    mark(error, _FINAL, True)
    return error


def causes_of(error: BaseException) -> Iterable[BaseException]:
    """It, what it was raised from or while handling, and the members of groups: each once."""
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
