"""Handlers that declare the type of their jobs' data: `async def ship(job: ActiveJob[Order])`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, get_args, get_origin, get_type_hints

from bunqueue.client.callables import as_async, is_async, signed
from bunqueue.client.connection.options import shown
from bunqueue.client.conversion.converter import Converter
from bunqueue.client.conversion.mismatch import Mismatch
from bunqueue.errors import ArgumentsError
from bunqueue.worker.active_job import ActiveJob, Handler


def with_typed_data(handler: Handler) -> Handler:
    """A handler that gets its jobs' data as the annotated type; the same handler if it has no annotation.
    Raises TypeError for a type that jobs cannot carry.
    """
    kind = _data_type(handler)
    if kind is Any:
        return handler
    converter = Converter(kind, f"handler {_name(handler)}: the data of its jobs")

    @wraps(handler)
    def run(job: ActiveJob[Any]) -> Any:
        _convert(job, converter)
        return handler(job)

    return as_async(run) if is_async(handler) else run


def _convert(job: ActiveJob[Any], converter: Converter) -> None:
    """Raise ArgumentsError if the data does not fit: the job becomes a dead letter at once, because another
    attempt would not change its data.
    """
    try:
        job.data = converter.convert(job.data)
    except Mismatch as error:
        raise ArgumentsError(
            f"job {job.name!r}: its data is not what its handler takes: {error}",
            argument=error.path,
            queue=job.queue,
        ) from None


def _data_type(handler: Handler) -> Any:
    """X if the handler's job is annotated as `ActiveJob[X]`; else Any."""
    function = signed(handler)
    annotations = getattr(function, "__annotations__", {})
    written = next((each for name, each in annotations.items() if name != "return"), None)
    if written is None or (isinstance(written, str) and "ActiveJob[" not in written):
        return Any
    hint = _resolved(function, written, handler)
    return get_args(hint)[0] if get_origin(hint) is ActiveJob else Any


def _resolved(function: Callable[..., Any], written: object, handler: Handler) -> Any:
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        if not isinstance(written, str):
            return written
        raise TypeError(
            f"handler {_name(handler)}: its annotation {written} names {error.name!r}, which its module does "
            f"not know when jobs run; define it at the top of a module, outside TYPE_CHECKING"
        ) from None
    return next(hint for name, hint in hints.items() if name != "return")


def _name(handler: Handler) -> str:
    return getattr(handler, "__qualname__", None) or shown(handler)
