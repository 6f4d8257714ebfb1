"""The names of a namespace: with its prefix within the server, without it for those who live there.

What an identity in the namespace ``acme`` calls ``emails`` is ``acme/emails`` in every shard, file, message
and metric, and for identities without a namespace.  Which texts of commands and answers are names follows
from their types (`NAMING`), so no handler and no surface needs to think of it.  An id that the server made is
the same for everybody.  Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

from msgspec import Raw, Struct
from msgspec.msgpack import Decoder

from bunqueue.model.ids import seq_of_id
from bunqueue.model.marks import NAMING, Mark
from bunqueue.model.names import MAX_QUEUE_NAME, queue_name_problem
from bunqueue.protocol import marked
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands.base import MAX_ID, CommandError, ErrorReply, Reply

from .event_frames import Event, Pushed
from .hidden import HIDDEN_VALUE
from .rewriting import Rewriting

MAX_KEPT = 1_000  # of the namespaces for which answers are prepared
_decode_ok = Decoder(Reply).decode
_BEFORE = r"(?<![A-Za-z0-9_.:/-])"  # within a text, a name begins after another character


def enter(prefix: str, command: Struct) -> None:
    """Put the prefix before the names in a command; "" changes nothing.  CommandError if one of them is not
    valid, or too long with it."""
    if prefix:
        _rename(command, partial(inside, prefix))


def leave(prefix: str, command: Struct) -> None:
    """Take it away again."""
    _rename(command, lambda _, text: text.removeprefix(prefix))


def _rename(command: Struct, new: Callable[[Mark, str], str]) -> None:
    for mark in _marks(type(command)):
        marked.rename(mark, command, partial(new, mark))


@lru_cache(None)
def _marks(kind: type[Struct]) -> tuple[Mark, ...]:
    return tuple(mark for mark in NAMING if marked.paths(kind, mark))


def inside(prefix: str, mark: Mark, text: str) -> str:
    """A name as the server has it.  CommandError if it is not valid."""
    if not text and mark is not Mark.QUEUE:
        return text
    if mark is Mark.QUEUE:
        if problem := queue_name_problem(text, alone=True):
            raise CommandError(problem, Code.INVALID_QUEUE, field="queue", value=text)
    elif mark is not Mark.NAME and seq_of_id(text) is not None:
        return text
    most = (MAX_ID if mark in (Mark.JOB, Mark.ID) else MAX_QUEUE_NAME) - len(prefix)
    if len(text) > most:
        word = "an id" if mark in (Mark.JOB, Mark.ID) else "a name"
        raise CommandError(
            f"{word} has at most {most} characters in this namespace, not {len(text)}",
            Code.INVALID_FIELD,
            field="queue" if mark is Mark.QUEUE else "id" if mark is not Mark.NAME else "name",
            value=text,
            bound=most,
        )
    return prefix + text


def place_of(prefix: str, mark: Mark, text: str) -> str:
    """The same to find out where a name belongs: one that is not valid is refused there."""
    try:
        return inside(prefix, mark, text)
    except CommandError:
        return text


def shown(prefix: str, reply: Reply, *, hides: bool = False) -> Reply | Raw:
    """An answer for those who live there; ``hides``: without what jobs hold."""
    if not (prefix or hides):
        return reply
    return answers(prefix, hides=hides).reply(reply)


def shown_encoded(prefix: str, kind: type[Reply], reply: bytes) -> bytes:
    """The same for an encoded answer to a command with answers of this kind."""
    if not prefix:
        return reply
    return bytes(answers(prefix).encoded(kind if _decode_ok(reply).ok else ErrorReply, Raw(reply)))


def shown_push(prefix: str, pushed: bytes) -> bytes:
    """The same for an event that the server pushes."""
    return bytes(answers(prefix).encoded(Pushed, Raw(pushed)))


def shown_event(prefix: str, event: dict[str, Any], *, hides: bool = False) -> dict[str, Any]:
    """The same as `shown` for an event that has been decoded."""
    return answers(prefix, hides=hides).value(Event, event) if prefix or hides else event


def shown_text(prefix: str, text: str) -> str:
    """A text of the server, in which any name may be."""
    return re.sub(_BEFORE + re.escape(prefix), "", text) if prefix else text


@lru_cache(MAX_KEPT)
def answers(prefix: str, *, hides: bool = False) -> Rewriting:
    """What becomes of answers for those who live there."""
    hidden = HIDDEN_VALUE if hides else None
    if not prefix:
        return Rewriting({}, hidden)

    def name(value: str) -> str:
        return value.removeprefix(prefix)

    def pair(value: str) -> str:
        return name(value).replace(f":{prefix}", ":", 1)

    texts = dict.fromkeys(NAMING, name) | {Mark.PAIR: pair, Mark.TEXT: partial(shown_text, prefix)}
    return Rewriting(texts, hidden)
