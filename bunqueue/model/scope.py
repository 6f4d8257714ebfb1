"""Who sends a command, and where an identity may use its verbs: the queues that its patterns name.

A pattern is the name of a queue in which ``*`` stands for any characters, but not for the end of a namespace.
A `Scope` is compiled once, and remembers what it has decided, so a command costs one look-up. Routers send it
to the shards with the commands of a connection, as bytes.
"""

from __future__ import annotations

import re
from functools import lru_cache

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from .names import MAX_QUEUE_NAME, SEPARATOR
from .rights import NAMELESS, Identity, Verb, names_of

MAX_PATTERNS = 100
MAX_DECIDED = 10_000  # queues for which a scope remembers its decision; then it forgets them all
MAX_SCOPES = 1_000  # compiled ones that a process keeps
_PATTERN = re.compile(r"[A-Za-z0-9_.:*-]+")


class _Wire(Struct, array_like=True):
    """A scope as bytes."""

    name: str
    verbs: int
    queues: tuple[str, ...]
    namespace: str = ""
    elsewhere: tuple[str, ...] = ()


_encode, _decode = Encoder().encode, Decoder(_Wire).decode


class Scope:
    """The rights of one identity, as everything that carries out its commands sees them."""

    __slots__ = ("_match", "_reserved", "_shows", "decided", "identity", "limits", "prefix", "wire")

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.prefix = f"{identity.namespace}{SEPARATOR}" if identity.namespace else ""
        """What the names of its namespace begin with, within the server."""
        self._reserved = tuple(f"{each}{SEPARATOR}" for each in identity.elsewhere)
        self.wire = _encode(_Wire(identity.name, identity.verbs.value, *identity[2:]))
        queues = identity.queues or (("*",) if self.prefix else ())
        parts = ["[^/]*".join(map(re.escape, pattern.split("*"))) for pattern in queues]
        matches = re.compile(f"{re.escape(self.prefix)}(?:{'|'.join(parts)})", re.ASCII).fullmatch
        self._match = matches if parts else None
        self.decided: dict[str, bool] = {}  # public, because it is read for each command
        self._shows: dict[int, bool] = {}  # by verbs, as numbers: the flags themselves are slow to combine
        sees_all = Verb.READ in identity.verbs or not identity.verbs & ~(Verb.ADD | Verb.RUN | Verb.SCRAPE)
        self.limits = bool(parts) or not sees_all
        """Whether there is anything that its verbs do not say already; else it only says who it is."""

    @property
    def is_everywhere(self) -> bool:
        """Whether it allows every queue."""
        return self._match is None

    def outside(self, name: str) -> str:
        """A name of its namespace, as the identity knows it."""
        return name.removeprefix(self.prefix)

    def reserves(self, name: str) -> bool:
        """Whether a name that it gives is kept for those in a namespace, as if they had taken it already."""
        return name.startswith(self._reserved)

    def allows(self, queue: str) -> bool:
        """Whether this queue exists for the identity; with its prefix, if it lives in a namespace."""
        if self._match is None:
            return True
        known = self.decided.get(queue)
        if known is None:
            if len(queue) > MAX_QUEUE_NAME:
                return False
            if len(self.decided) >= MAX_DECIDED:
                self.decided.clear()
            known = self.decided[queue] = self._match(queue) is not None
        return known

    def shows(self, verbs: Verb) -> bool:
        """Whether an answer to a command with these verbs shows what jobs hold: to who may read that, and to
        who gets it to run or to add a job."""
        known = self._shows.get(verbs.value)
        if known is None:
            known = bool(self.identity.verbs & (Verb.READ | verbs & (Verb.RUN | Verb.ADD)))
            self._shows[verbs.value] = known
        return known


def scope_of(identity: Identity) -> Scope | None:
    """The scope of an identity; None for those that have no name of their own and see everything."""
    found = _compiled(identity)
    return found if found.limits or identity.name not in NAMELESS else None


@lru_cache(MAX_SCOPES)
def _compiled(identity: Identity) -> Scope:
    return Scope(identity)


@lru_cache(MAX_SCOPES)
def read_scope(wire: bytes) -> Scope:
    """A scope from its bytes."""
    found = _decode(wire)
    return _compiled(Identity(found.name, Verb(found.verbs), found.queues, found.namespace, found.elsewhere))


def pattern_problem(pattern: str) -> str:
    """What is wrong with a pattern; "" if nothing is."""
    if not _PATTERN.fullmatch(pattern):
        return f"{pattern[:80]!r} is no pattern for queues: give characters of [a-zA-Z0-9_-.:], and * for any"
    if len(pattern) > MAX_QUEUE_NAME:
        return f"the pattern {pattern[:20]!r}... has {len(pattern)} characters, at most {MAX_QUEUE_NAME} fit"
    return ""


def not_there(scope: Scope, command: str, verbs: Verb, queue: str) -> str:
    """Why an identity may not use a command on a queue."""
    identity = scope.identity
    needed = " or ".join(repr(name) for name in names_of(verbs & identity.verbs or verbs))
    where = ", ".join(identity.queues)
    text = f"{identity.name} may not use {command} on queue {scope.outside(queue)[:80]!r}"
    return f"{text}: it has the verb {needed} on {where} only"


def not_of_server(scope: Scope, command: str) -> str:
    """Why an identity of some queues may not use a command that is about the whole server."""
    identity, where = scope.identity, f"the namespace {scope.identity.namespace}"
    if identity.queues:
        where = f"the queues {', '.join(identity.queues)}"
    return (
        f"{identity.name} may not use {command}: it is about the whole server, "
        f"and the identity is for {where} only"
    )


def may_not_ask(scope: Scope, command: str, field: str) -> str:
    """Why an identity may not ask for jobs by what they hold."""
    has = ", ".join(names_of(scope.identity.verbs))
    return (
        f"{scope.identity.name} may not use {command} with {field}: what jobs hold needs the verb 'read', "
        f"and it has {has}"
    )
