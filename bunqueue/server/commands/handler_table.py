"""A table of functions: each enters itself, with a decorator, and none can take the place of another."""

from __future__ import annotations

from typing import Any


def enter(table: dict[Any, Any], key: object, function: object) -> None:
    """Put the function into the table.  Raises TypeError if the key has one."""
    if key in table:
        raise TypeError(f"{key} has two functions: {table[key]} and {function}")
    table[key] = function
