"""Who may do what: the verbs, the roles, and an identity with its rights.

Each command says in its declaration which verbs allow it (`Spec.verbs`); one of them is enough. `may` is the
only place that compares them with what an identity has, so no surface decides for itself.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Verb(enum.Flag):
    """What one may do with jobs, queues and the server."""

    ADD = enum.auto()
    RUN = enum.auto()
    SCRAPE = enum.auto()
    SEE = enum.auto()
    READ = enum.auto()
    OPERATE = enum.auto()
    DESTROY = enum.auto()
    ADMINISTER = enum.auto()


MEANINGS: Mapping[Verb, str] = {
    Verb.ADD: "add jobs, flows and signals",
    Verb.RUN: "pull jobs, and report what becomes of them",
    Verb.SCRAPE: "the metrics for Prometheus, and nothing else",
    Verb.SEE: "counts, states and metrics; jobs and events with what they hold as `hidden`",
    Verb.READ: "payloads, results, errors, progress messages and logs",
    Verb.OPERATE: "pause, retry, cancel and move jobs; limits and schedules",
    Verb.DESTROY: "remove jobs, queues and logs for good",
    Verb.ADMINISTER: "webhooks, hosts and the server itself",
}

ANYBODY = Verb(0)
"""The verbs of a command that every identity may use."""

ALL = ~ANYBODY
SUPERVISING = Verb.OPERATE | Verb.DESTROY | Verb.ADMINISTER
CHANGING = ALL & ~(Verb.SCRAPE | Verb.SEE | Verb.READ)

ROLES: Mapping[str, Verb] = {
    "producer": Verb.ADD,
    "worker": Verb.RUN,
    "scraper": Verb.SCRAPE,
    "viewer": Verb.SCRAPE | Verb.SEE,
    "reader": Verb.SCRAPE | Verb.SEE | Verb.READ,
    "operator": Verb.SCRAPE | Verb.SEE | Verb.READ | Verb.OPERATE,
    "admin": ALL,
}


class Identity(NamedTuple):
    """Somebody who may do something."""

    name: str
    verbs: Verb
    queues: tuple[str, ...] = ()
    """Patterns of the queues that its verbs are for; none: all queues."""
    namespace: str = ""
    """What it lives in; "": in none, so it sees all of them, unless it is for some queues only."""
    elsewhere: tuple[str, ...] = ()
    """The namespaces that do not exist for it, as it is for some queues and lives in none."""

    @property
    def is_restricted(self) -> bool:
        """Whether there is anything that it may not do."""
        return self.verbs != ALL or bool(self.queues or self.namespace)

    @property
    def changes(self) -> bool:
        """Whether there is anything that it may change."""
        return bool(self.verbs & CHANGING)


EVERYBODY = Identity("", ALL)
"""Any client of a server without tokens and identities."""


FULL_ACCESS, READ_ONLY = "auth_token", "read_only_token"
"""The identities of the settings with these names."""
NAMELESS = frozenset({EVERYBODY.name, FULL_ACCESS, READ_ONLY})
"""Those that do not say who it is."""


def may(identity: Identity, verbs: Verb) -> bool:
    """Whether an identity has one of the verbs."""
    return not verbs or bool(identity.verbs & verbs)


def names_of(verbs: Verb) -> list[str]:
    """The names of verbs, in the order of their declaration."""
    return [verb.name.lower() for verb in Verb if verb in verbs and verb.name]


def verbs_named(names: Iterable[str]) -> Verb:
    """The verbs with these names. Raises KeyError for an unknown one. Who may see may also scrape."""
    found = ANYBODY
    for name in names:
        found |= Verb[name.upper()]
    return found | Verb.SCRAPE if Verb.SEE in found else found


def refusal(identity: Identity, command: str, verbs: Verb) -> str:
    """Why an identity may not use a command."""
    if identity.name == READ_ONLY:
        return f"This token may only read: {command} needs one of --auth-token"
    needed = " or ".join(repr(name) for name in names_of(verbs))
    has = ", ".join(names_of(identity.verbs)) or "nothing"
    return f"{identity.name} may not use {command}: it needs the verb {needed}, and has {has}"
