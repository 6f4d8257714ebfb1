"""Answers for who may see jobs but not read them: what they hold comes as ``hidden``.

Which fields these are follows from their types (`Mark.CONTENT`, `Holds`), so a new field, command or surface
needs nothing here.  Payloads are replaced without being decoded.  A null stays one: that there is no error is
no secret.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from msgspec import Raw, Struct
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import fields

from bunqueue.model.marks import Holds, Mark

from .codec import encode_reply
from .commands.base import Data, Reply
from .commands.dlq import DeadLetterView
from .event_frames import Event
from .job_view import JobView

HIDDEN = "hidden"

Hide = Callable[[Raw], Raw]

_encode = Encoder().encode
_decode_map, _decode_list = Decoder(dict[str, Raw]).decode, Decoder(list[Raw]).decode
_HIDDEN, _NIL = Raw(_encode(HIDDEN)), _encode(None)


class _Moment(Struct):
    error: Annotated[str, Mark.CONTENT]


class _OnDead(Struct):
    data: Annotated[Raw, Mark.CONTENT]


class _Options(Struct, rename="camel"):
    on_dead: _OnDead


_HELD: Mapping[str, type[Struct]] = {
    "job": JobView,
    "dead letter": DeadLetterView,
    "event": Event,
    "moment": _Moment,
    "options": _Options,
}
"""The structs that encoded values have the fields of."""


def without_content(reply: Reply) -> Reply | Raw:
    """The answer without what jobs hold."""
    hides = content_of(kind_of(reply))
    if not hides:
        return reply
    if type(reply) is Data:
        hides = {"data": partial(_map, hides)}
    return _map(hides, Raw(encode_reply(reply)))


def kind_of(reply: Reply) -> type[Struct]:
    """The struct that says what an answer holds: of a `Data`, whatever its command, that is its data's."""
    return type(reply.data) if type(reply) is Data else type(reply)


def event_without_content(event: Mapping[str, Any]) -> dict[str, Any]:
    """The same for an event that has been decoded."""
    hidden = content_of(Event)
    return {name: HIDDEN if name in hidden and value is not None else value for name, value in event.items()}


@cache
def content_of(struct: type[Struct]) -> dict[str, Hide]:
    """What to do with each field of a struct that is or leads to content, by its wire name."""
    hints = get_type_hints(struct, include_extras=True)
    found = ((field.encode_name, _hide(hints[field.name])) for field in fields(struct))
    return {name: hide for name, hide in found if hide is not None}


def _hide(hint: Any) -> Hide | None:
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *more = get_args(hint)
        if Mark.CONTENT in more:
            return _hidden
        held = next((each for each in more if isinstance(each, Holds)), None)
        return _hide(inner) if held is None else _held(held)
    if origin in (Union, UnionType):
        return next(filter(None, map(_hide, get_args(hint))), None)
    if origin in (list, dict):
        hide = _hide(get_args(hint)[-1])
        return None if hide is None else _each(hide, is_map=origin is dict)
    if isinstance(hint, type) and issubclass(hint, Struct) and (inside := content_of(hint)):
        return lambda value: _map(inside, value)
    return None


def _held(held: Holds) -> Hide:
    inside = content_of(_HELD[held.what])
    one: Hide = lambda value: _map(inside, value)  # noqa: E731
    return _each(one, is_map=False) if held.many else one


def _hidden(value: Raw) -> Raw:
    return value if bytes(value) == _NIL else _HIDDEN


def _each(hide: Hide, *, is_map: bool) -> Hide:
    def each(value: Raw) -> Raw:
        if bytes(value) == _NIL:
            return value
        if is_map:
            return Raw(_encode({name: hide(one) for name, one in _decode_map(value).items()}))
        return Raw(_encode([hide(one) for one in _decode_list(value)]))

    return each


def _map(inside: Mapping[str, Hide], value: Raw) -> Raw:
    if bytes(value) == _NIL:
        return value
    found = _decode_map(value)
    for name in inside.keys() & found.keys():
        found[name] = inside[name](found[name])
    return Raw(_encode(found))
