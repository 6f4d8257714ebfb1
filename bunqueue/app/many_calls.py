"""Many calls of one function as one job: the jobs of `starmap` and `chunks`, and the format of their data.

The data is a map with one key that no parameter can have. Its value has the arguments of each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from bunqueue.client.connection.options import shown
from bunqueue.errors import OptionError
from bunqueue.model.functions import MANY_CALLS

KEY = MANY_CALLS

T = TypeVar("T")


def calls_of(data: Any) -> list[Any] | None:
    """The arguments of the calls, or None if the data is that of one call."""
    return data[KEY] if type(data) is dict and KEY in data else None


def rows_of(rows: Iterable[Iterable[Any]]) -> Iterator[tuple[Any, ...]]:
    """Positional arguments, row by row. Raises OptionError for something that is not a row, such as a
    text."""
    for number, row in enumerate(rows):
        if isinstance(row, str | bytes) or not isinstance(row, Iterable):
            raise OptionError(f"row {number}: {shown(row)} is not allowed; give a tuple of arguments")
        yield tuple(row)


def pieces(rows: Iterable[T], size: int) -> Iterator[list[T]]:
    """Split rows into lists of at most `size`."""
    left = iter(rows)
    while piece := list(islice(left, size)):
        yield piece
