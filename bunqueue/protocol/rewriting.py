"""Changes values in answers by what they are (`Mark`), wherever the types of an answer lead to one.

Which fields these are follows from their types (`Mark`, `Holds`), so a new field, command or surface needs
nothing here.  Payloads are passed on without being decoded, and a null stays one.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from msgspec import Raw, Struct
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import fields

from bunqueue.model.marks import Holds, Mark

from .codec import encode_reply
from .commands.base import Data, Reply
from .commands.dlq import DeadLetterView
from .commands.server import QueueInfo
from .event_frames import Event
from .job_view import JobView, PulledJob

Change = Callable[[Raw], Raw]
Text = Callable[[str], str]

_encode = Encoder().encode
_decode_map, _decode_list = Decoder(dict[str, Raw]).decode, Decoder(list[Raw]).decode
_decode_text, _decode_any = Decoder(str).decode, Decoder(dict[str, Any]).decode
_NIL = 0xC0  # first byte of a null
_STRINGS = frozenset({*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB})  # first bytes of a text


class _Moment(Struct):
    error: Annotated[str, Mark.CONTENT]


class _ShownOnDead(Struct):
    queue: Annotated[str, Mark.QUEUE]


class _OnDead(_ShownOnDead):
    data: Annotated[Raw, Mark.CONTENT]


class _Options(Struct, rename="camel"):
    on_dead: _OnDead


_HELD: Mapping[str, type[Struct]] = {
    "job": JobView,
    "pulled job": PulledJob,
    "dead letter": DeadLetterView,
    "event": Event,
    "moment": _Moment,
    "options": _Options,
    "on dead": _ShownOnDead,
    "queue": QueueInfo,
}
"""The structs that encoded values have the fields of.  A text in place of a queue is its name."""


class Rewriting:
    """What to do with the values of each kind."""

    def __init__(self, texts: Mapping[Mark, Text], hidden: Raw | None = None) -> None:
        """``texts``: what becomes of marked texts.  ``hidden``: what comes in place of what jobs hold."""
        self._texts = texts
        self._hidden = hidden
        self._known: dict[type[Struct], dict[str, Change]] = {}

    def reply(self, reply: Reply) -> Reply | Raw:
        """An answer with its values changed."""
        changes = self.of(kind_of(reply))
        if not changes:
            return reply
        whole = Raw(encode_reply(reply))
        if type(reply) is Data:
            return _map({"data": lambda value: _map(changes, value)}, whole)
        return _map(changes, whole)

    def encoded(self, struct: type[Struct], value: Raw) -> Raw:
        """The same for an encoded map with the fields of a struct."""
        return _map(self.of(struct), value)

    def value(self, struct: type[Struct], value: Mapping[str, Any] | Struct) -> dict[str, Any]:
        """The same for a map, or a struct, with these fields."""
        return _decode_any(self.encoded(struct, Raw(_encode(value))))

    def of(self, struct: type[Struct]) -> dict[str, Change]:
        """What to do with each field of a struct that is or leads to such a value, by its wire name."""
        known = self._known.get(struct)
        if known is None:
            hints = get_type_hints(struct, include_extras=True)
            found = ((field.encode_name, self._change(hints[field.name])) for field in fields(struct))
            known = self._known[struct] = {name: change for name, change in found if change is not None}
        return known

    def _change(self, hint: Any) -> Change | None:
        origin = get_origin(hint)
        if origin is Annotated:
            return self._annotated(*get_args(hint))
        if origin in (Union, UnionType):
            return next(filter(None, map(self._change, get_args(hint))), None)
        if origin is list:
            entry = self._change(get_args(hint)[0])
            return None if entry is None else _each(entry)
        if origin is dict:
            return self._dict(*get_args(hint))
        if isinstance(hint, type) and issubclass(hint, Struct) and (inside := self.of(hint)):
            return lambda value: _map(inside, value)
        return None

    def _annotated(self, inner: Any, *more: Any) -> Change | None:
        if Mark.CONTENT in more and self._hidden is not None:
            return self._hide
        if (text := self._text(more)) is not None:
            return _of_text(text)
        held = next((each for each in more if isinstance(each, Holds)), None)
        return self._change(inner) if held is None else self._held(held)

    def _text(self, marks: Sequence[Any]) -> Text | None:
        known = (self._texts.get(each) for each in marks if isinstance(each, Mark))
        return next(filter(None, known), None)

    def _held(self, held: Holds) -> Change | None:
        inside, name = self.of(_HELD[held.what]), self._texts.get(Mark.QUEUE)
        if not inside:
            return None
        alone = None if name is None else _of_text(name)

        def one(value: Raw) -> Raw:
            if alone is not None and _is_text(value):
                return alone(value)
            return _map(inside, value)

        return _each(one) if held.many else one

    def _dict(self, key: Any, entry: Any) -> Change | None:
        name = self._text(get_args(key)[1:]) if get_origin(key) is Annotated else None
        change = self._change(entry)
        if name is None and change is None:
            return None

        def each(value: Raw) -> Raw:
            if _is_null(value):
                return value
            found = _decode_map(value).items()
            new = {
                (name(key) if name is not None else key): change(one) if change is not None else one
                for key, one in found
            }
            return Raw(_encode(new))

        return each

    def _hide(self, value: Raw) -> Raw:
        assert self._hidden is not None
        return value if _is_null(value) else self._hidden


def kind_of(reply: Reply) -> type[Struct]:
    """The struct that says what an answer holds: of a `Data`, whatever its command, that is its data's."""
    return type(reply.data) if type(reply) is Data else type(reply)


def _of_text(text: Text) -> Change:
    def change(value: Raw) -> Raw:
        return Raw(_encode(text(_decode_text(value)))) if _is_text(value) else value

    return change


def _is_null(value: Raw) -> bool:
    return memoryview(value)[0] == _NIL  # no copy: a payload may have megabytes


def _is_text(value: Raw) -> bool:
    return memoryview(value)[0] in _STRINGS


def _each(change: Change) -> Change:
    def each(value: Raw) -> Raw:
        if _is_null(value):
            return value
        return Raw(_encode([change(one) for one in _decode_list(value)]))

    return each


def _map(inside: Mapping[str, Change], value: Raw) -> Raw:
    if _is_null(value):
        return value
    found = _decode_map(value)
    for name in inside.keys() & found.keys():
        found[name] = inside[name](found[name])
    return Raw(_encode(found))
