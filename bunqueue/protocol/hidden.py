"""Answers for who may see jobs but not read them: what they hold (`Mark.CONTENT`) comes as ``hidden``."""

from __future__ import annotations

from msgspec import Raw, Struct
from msgspec.msgpack import Encoder

from .rewriting import Change, Rewriting

HIDDEN = "hidden"
HIDDEN_VALUE = Raw(Encoder().encode(HIDDEN))

_HIDING = Rewriting({}, HIDDEN_VALUE)


def content_of(struct: type[Struct]) -> dict[str, Change]:
    """What to do with each field of a struct that is or leads to content, by its wire name."""
    return _HIDING.of(struct)
