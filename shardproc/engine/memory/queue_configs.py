"""The configuration of queues, which need not exist yet: kept by name, also over restarts."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from bunqueue.model.bounds import Bounds
from bunqueue.model.dead_letters import DlqConfig, OwnDlqConfig
from bunqueue.model.functions import QueueFunctions
from bunqueue.model.stall import StallConfig
from bunqueue.model.workflow import SignalTypes

from ..registry import at_queue, recovers
from ..state import State

KINDS: dict[type[Struct], str] = {
    OwnDlqConfig: "dlq",
    StallConfig: "stall",
    Bounds: "bounds",
    SignalTypes: "signal_types",
    QueueFunctions: "functions",
}
_DEFAULTS: dict[type[Struct], Struct] = {kind: kind() for kind in KINDS}

C = TypeVar("C", bound=Struct)


def of_queue(state: State, queue: str, kind: type[C]) -> C:
    """The configuration of a queue, or the default if none is set."""
    found = state.configs.get((kind, queue), _DEFAULTS[kind])
    assert isinstance(found, kind)
    return found


def dlq_config(state: State, queue: str) -> DlqConfig:
    """How a queue keeps its dead letters: its own settings, on top of the server's."""
    own, server = state.configs.get((OwnDlqConfig, queue)), state.maintenance.dead_letters
    return own.over(server) if isinstance(own, OwnDlqConfig) else server


def store(state: State, queue: str, config: Struct, characters: int = 0) -> None:
    """Store a configuration; ``characters`` is its length, where it may be long.  CommandError if no more of
    them are kept."""
    state.kept.admit(KINDS[type(config)], queue, "queue", queue, characters)
    state.configs[type(config), queue] = config
    state.out.keep(KINDS[type(config)], queue, config)


def has_any(state: State, queue: str) -> bool:
    """Whether a queue has a configuration; signal types do not count, as programs declare them again at their
    start."""
    return any((kind, queue) in state.configs for kind in KINDS if kind is not SignalTypes)


def forget(state: State, queue: str) -> None:
    """Delete all configurations of a queue."""
    for kind, name in KINDS.items():
        if state.configs.pop((kind, queue), None) is not None:
            state.out.keep(name, queue, None)


@recovers("dlq", at_queue)
def recover_dlq(state: State, key: str, value: str) -> None:
    state.configs[OwnDlqConfig, key] = msgspec.json.decode(value, type=OwnDlqConfig)


@recovers("stall", at_queue)
def recover_stall(state: State, key: str, value: str) -> None:
    state.configs[StallConfig, key] = msgspec.json.decode(value, type=StallConfig)
