"""Validation of queue names, and suggestions for unknown names."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_QUEUE_NAME = 256  # characters; the specification's validation table
SEPARATOR = "/"  # between a namespace and a name in it; no queue of a server without namespaces has it
NAMESPACE = r"[a-z0-9][a-z0-9-]{0,31}"
_STORED = "|"  # in place of the separator in keys, where "/" ends the name of the queue
_ALLOWED = re.compile(r"[a-zA-Z0-9_\-.:]+")
_WITHIN = re.compile(f"({NAMESPACE}{SEPARATOR})?[a-zA-Z0-9_\\-.:]+")
_known = _ALLOWED  # what this process accepts


def allow_namespaces() -> None:
    """From now on, names of queues may begin with a namespace: this process serves identities, which may live
    in one."""
    global _known
    _known = _WITHIN


def queue_name_problem(name: object, *, anywhere: bool = False, alone: bool = False) -> str | None:
    """What is wrong with a queue name, as the text of the refusal; None if it is valid.  ``anywhere``: it may
    begin with a namespace, ``alone``: it may not, whatever this process serves."""
    if name is None or name == "":
        return "Queue name is required"
    if not isinstance(name, str):
        return "Queue name must be a string"
    if len(name) > MAX_QUEUE_NAME:
        return f"Queue name too long (max {MAX_QUEUE_NAME} characters)"
    if not (_WITHIN if anywhere else _ALLOWED if alone else _known).fullmatch(name):
        return "Queue name contains invalid characters"
    return None


def namespace_problem(name: str) -> str:
    """What is wrong with the name of a namespace; "" if it is valid."""
    if re.fullmatch(NAMESPACE, name):
        return ""
    return f"{name[:80]!r} is no name for a namespace: give up to 32 of a-z 0-9 -"


def prefix_of(queue: str) -> str:
    """The namespace in the name of a queue, with the separator; "" without one."""
    return queue[: queue.find(SEPARATOR) + 1]


def namespace_of(queue: str) -> str:
    """The namespace in the name of a queue; "" without one."""
    return prefix_of(queue)[:-1]


def outside(queue: str, name: str) -> str:
    """A name as those know it who live where the queue is."""
    return name.removeprefix(prefix_of(queue))


def record_key(queue: str, name: str) -> str:
    """The key of a record about something of a queue."""
    return f"{queue.replace(SEPARATOR, _STORED)}/{name}"


def parts_of(key: str) -> tuple[str, str]:
    """The queue and the name in such a key."""
    queue, _, name = key.partition("/")
    return queue.replace(_STORED, SEPARATOR), name


def hint(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint for an unknown name: the known name that was probably meant, in whatever case it was given, or
    else ``otherwise``, by default all known names."""
    import difflib  # costs milliseconds at start-up and is needed only here

    names = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), names, 1, 0.75)
    if close:
        return f"did you mean {names[close[0]]}?"
    return otherwise or f"there are {', '.join(names.values())}"
