"""Why a process must stop using a shard's log."""

from __future__ import annotations


class Fenced(Exception):
    """Another process owns the shard now. Nothing that this one has in memory counts any more."""


class LogDamaged(Exception):
    """The log contradicts itself, or this shard's file: a position is missing, or has another record."""


class LogShorter(LogDamaged):
    """The log ends before this shard's file does: it has lost what it had acknowledged."""
