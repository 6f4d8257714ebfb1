"""Decodes encoded values anywhere in a reply.

A value that cannot be decoded stays in place, with the reason (`envelope.marked`), so that one bad payload
does not spoil the others of the reply.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.msgpack import Ext

from bunqueue.client import engine_override
from bunqueue.client.codecs.codec import Codec
from bunqueue.client.codecs.envelope import (
    MARK_BYTES,
    TEXT,
    envelope_in,
    marked,
    opened,
    plain_one,
    text_of,
)
from bunqueue.client.codecs.outgoing import SAME, same_again
from bunqueue.errors import CodecError, PayloadTooLarge
from bunqueue.protocol.commands import core, events, workflows
from bunqueue.protocol.encoded import LEVELS, MARK, is_envelope

OUTDATED = "outdated"
"""A field added to values that should be encrypted again; it is never sent."""
MAX_REPLY = 256 << 20
"""The maximum bytes of all payloads of one reply together when decompressed."""


def _extension(code: int, data: memoryview) -> Ext:
    return Ext(code, bytes(data))


_decode = msgspec.msgpack.Decoder(ext_hook=_extension).decode
_encode = msgspec.msgpack.Encoder().encode
_SAME = SAME.encode()


_SEALED: dict[type[Struct], tuple[str, str]] = {
    core.Pull: ("job", "data"),
    core.PullBatch: ("jobs", "data"),
    events.WaitJobs: ("ended", "result"),
}
"""Where replies to these commands have values that a codec with encryption requires to be encrypted: the data
that handlers run, and the results that callers get.
"""


def decoded(codec: Codec, payload: bytes, command: Struct | None = None) -> bytes:
    """The reply to `command` with its payloads decoded."""
    sealed = None if command is None else _sealed(codec, command)
    if sealed is None and MARK_BYTES not in payload and _SAME not in payload:
        return payload
    try:
        reply = _decode(payload)
        plain = _Opening(codec).opened(reply)
        if sealed is not None:
            _refuse_plain(reply, plain, *sealed)
        if codec.encryption is not None and len(codec.encryption.keys) > 1:
            _mark_outdated(codec.encryption.first, command, reply, plain)
        return _encode(plain)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return payload  # not readable as a whole: the caller reports what is wrong


def _sealed(codec: Codec, command: Struct) -> tuple[str, str] | None:
    if codec.encryption is None or codec.encryption.accept_plain:
        return None
    if engine_override.current is not None and type(command) is events.WaitJobs:
        return None  # the result of a test's bare handler, which has no codec
    return _SEALED.get(type(command))


def _refuse_plain(reply: Any, opened: Any, where: str, field: str) -> None:
    """Mark values in the reply that are not encrypted."""
    for given, found in zip(_parts(reply, where), _parts(opened, where), strict=True):
        value = given.get(field)
        if value is None or isinstance(value, Ext) or (is_envelope(value) and value.get("key") is not None):
            continue  # an absent value is not encrypted anyway
        found[field] = plain_one(value)


def _mark_outdated(first: str, command: Struct | None, reply: Any, opened: Any) -> None:
    """Mark pulled jobs and recorded steps that are encrypted with another key than the first: their worker
    has them stored again. The data of a job's `on_dead` is not checked here; its key is that of the job's
    data.
    """
    if isinstance(command, core.Pull | core.PullBatch):
        where = _SEALED[type(command)][0]
        for given, found in zip(_parts(reply, where), _parts(opened, where), strict=True):
            if _is_outdated(given.get("data"), found.get("data"), first):
                found[OUTDATED] = {"data": found["data"]}
            elif given.get("data") is None:  # there may be an `on_dead`
                found[OUTDATED] = {}
    elif isinstance(command, workflows.GetSteps) and isinstance(reply.get("data"), dict):
        for given, found in zip(_parts(reply["data"], "steps"), _parts(opened["data"], "steps"), strict=True):
            found[OUTDATED] = _is_outdated(given.get("result"), found.get("result"), first)


def _is_outdated(given: Any, found: Any, first: str) -> bool:
    return is_envelope(given) and given.get("key") not in (None, first) and isinstance(found, Raw)


def _parts(reply: Any, where: str) -> list[dict[str, Any]]:
    """The jobs of a reply, or its only job."""
    found = reply.get(where) if isinstance(reply, dict) else None
    return [each for each in (found if isinstance(found, list) else [found]) if isinstance(each, dict)]


class _Opening:
    """Decodes one reply."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._left = MAX_REPLY

    def opened(self, value: Any, levels: int = LEVELS) -> Any:
        kind = type(value)
        if kind is str:
            return self._text(value)
        if levels and kind is dict:
            if MARK in value and is_envelope(value):
                return self._payload(value)
            return {key: self.opened(each, levels - 1) for key, each in value.items()}
        return self._list(value, levels - 1) if levels and kind is list else value

    def _list(self, values: list[Any], levels: int) -> list[Any]:
        found: list[Any] = []
        for each in values:
            value = self.opened(each, levels)
            if type(each) is str and value != each:  # the lines of a traceback are encoded as one
                found.extend(value.splitlines())
            else:
                found.append(value)
        return found

    def _payload(self, envelope: dict[str, Any]) -> Any:
        try:
            return self._plain(envelope)
        except CodecError as error:
            return marked(envelope, error)

    def _plain(self, envelope: dict[str, Any]) -> Raw:
        size = envelope.get("size")
        if isinstance(size, int) and size > self._left:
            raise PayloadTooLarge(
                f"with the others of this reply it would have more than {MAX_REPLY} bytes; ask for fewer",
                together=size <= self._codec.max_size,
            )
        plain = opened(self._codec, envelope)
        self._left -= len(memoryview(plain))
        return plain

    def _text(self, text: str) -> str:
        if self._codec.encryption is None:
            return text
        if text.startswith(SAME):
            return same_again(self._codec.encryption, text)
        return TEXT.sub(self._part, text) if MARK in text else text

    def _part(self, match: re.Match[str]) -> str:
        try:
            return text_of(self._plain(envelope_in(match[1])))
        except CodecError:
            return match[0]
