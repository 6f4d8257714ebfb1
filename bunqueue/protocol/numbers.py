"""Numbers that every client can read."""

from __future__ import annotations

MAX_INT = 2**31 - 1  # larger integers are sent as float64: some languages read 64-bit integers as another


def number(value: float) -> float | int:
    """A finite number in the form that replies use: whole numbers as integers, up to MAX_INT."""
    return int(value) if -MAX_INT <= value <= MAX_INT and value == int(value) else float(value)
