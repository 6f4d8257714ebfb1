"""Options for how long a finished job is kept, if at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bunqueue.client.connection.options import unfit

_PAIRS = (("keep_completed", "remove_on_complete"), ("keep_failed", "remove_on_fail"))
RETENTION = frozenset(name for pair in _PAIRS for name in pair)
"""Their names."""


def defaults_beside(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """The defaults that remain when a job sets its own. Raises OptionError if the job contradicts itself."""
    for kept, removes in _PAIRS:
        if kept in given and given.get(removes):
            raise unfit(kept, f"{removes} keeps nothing; leave out {kept} or {removes}")
        if kept in given or removes in given:
            defaults = {name: value for name, value in defaults.items() if name not in (kept, removes)}
    return defaults
