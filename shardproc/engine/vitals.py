"""What only the process knows of itself, and the rules may tell to those who ask."""

from __future__ import annotations

from msgspec import Struct

MB = 1024 * 1024


class Trouble(Struct, frozen=True):
    """Why not everything can be stored."""

    error: str
    since: int  # epoch ms
    disk_full: bool


class Vitals(Struct, frozen=True):
    """Sizes in bytes."""

    memory: int = 0
    sqlite: int = 0
    cpu_s: float = 0.0
    trouble: Trouble | None = None
