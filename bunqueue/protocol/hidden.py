"""Answers for who may see jobs but not read them: what they hold (`Mark.CONTENT`) comes as ``hidden``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw, Struct
from msgspec.msgpack import Encoder

from .event_frames import Event
from .rewriting import Change, Rewriting

HIDDEN = "hidden"
HIDDEN_VALUE = Raw(Encoder().encode(HIDDEN))

_HIDING = Rewriting({}, HIDDEN_VALUE)


def event_without_content(event: Mapping[str, Any]) -> dict[str, Any]:
    """An event that has been decoded, without what jobs hold."""
    hidden = content_of(Event)
    return {name: HIDDEN if name in hidden and value is not None else value for name, value in event.items()}


def content_of(struct: type[Struct]) -> dict[str, Change]:
    """What to do with each field of a struct that is or leads to content, by its wire name."""
    return _HIDING.of(struct)
