"""The declared functions of a queue, by the names of their jobs, as pushes look them up."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from msgspec.msgpack import Decoder
from msgspec.structs import fields

from bunqueue.model.functions import ACCEPT, POLICIES, RETIRED_MS, Function, InvalidJobs, QueueFunctions
from bunqueue.protocol.commands.functions import FunctionOptions

_NAMES = tuple(field.name for field in fields(FunctionOptions))
_decode_options = Decoder(FunctionOptions).decode
_decode = Decoder().decode


class Known:
    """A function, as a push needs it."""

    __slots__ = ("app", "function", "invalid_jobs", "is_idle", "name", "options", "schema")

    def __init__(self, name: str, function: Function, app: str, invalid_jobs: InvalidJobs) -> None:
        self.name, self.function, self.app, self.invalid_jobs = name, function, app, invalid_jobs
        self.options = options_of(function)
        self.schema: dict[str, Any] | None = _decode(function.schema) if function.schema else None
        has_check = invalid_jobs != ACCEPT and (self.schema is not None or function.retired is not None)
        self.is_idle = not (self.options or has_check)  # nothing follows for its jobs


class Functions:
    """The functions of one queue, and how many invalid jobs were refused or warned of."""

    __slots__ = ("config", "idle", "names", "refused", "unknown", "warned")

    def __init__(self) -> None:
        self.refused = self.warned = 0  # jobs
        self.config = QueueFunctions()
        self.names: dict[str, Known] = {}  # functions by the names and aliases of their jobs
        self.idle: set[str] = set()  # names of which nothing follows for a job
        self.unknown: InvalidJobs = ACCEPT  # what happens to jobs of other names

    def set(self, config: QueueFunctions) -> None:
        """Replace what is declared."""
        self.config = config
        self.names = {}
        apps = sorted(config.apps.items(), key=lambda each: each[1].declared)
        for app, declared in apps:  # the last declaration of a name counts, and those in use before others
            for name, function in declared.functions.items():
                known = Known(name, function, app, declared.invalid_jobs)
                for each in (name, *function.aliases):
                    there = self.names.get(each)
                    if there is None or function.retired is None or there.function.retired is not None:
                        self.names[each] = known
        self.idle = {name for name, known in self.names.items() if known.is_idle}
        found = [declared for _, declared in apps]
        policies = [ACCEPT, *(each.invalid_jobs for each in found)]
        self.unknown = ACCEPT if any(each.any_name for each in found) else max(policies, key=POLICIES.index)

    def concerns(self, name: str) -> bool:
        """Whether anything follows for a job of that name."""
        if self.unknown == ACCEPT and name not in self.names:
            return False
        return name not in self.idle

    def find(self, name: str, now: int) -> Known | None:
        """The function of the jobs of a name."""
        known = self.names.get(name)
        if known is None or is_forgotten(known.function, now):
            return None
        return known


def is_forgotten(function: Function, now: int) -> bool:
    """Whether its app left it out long ago."""
    return function.retired is not None and now - function.retired >= RETIRED_MS


def options_of(function: Function) -> dict[str, Any]:
    """The declared options by the names of fields."""
    if not function.options:
        return {}
    found = _decode_options(function.options)
    values = ((name, getattr(found, name)) for name in _NAMES)
    return {name: value for name, value in values if value is not UNSET and value is not None}
