"""Numbers that every client can read."""

from __future__ import annotations

MAX_INT = 2**31 - 1  # larger integers travel as float64: some languages read 64-bit integers as another type


def number(value: float) -> float | int:
    """A finite number as replies carry it: whole ones as integers, as long as these are short."""
    return int(value) if -MAX_INT <= value <= MAX_INT and value == int(value) else float(value)
