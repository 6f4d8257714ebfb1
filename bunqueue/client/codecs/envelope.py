"""The format of encoded values: a map that describes itself, or a text that contains such a map.

    {"$encoded": "encrypted with key k1 (AES-GCM), 1.2 kB", "v": 1, "compression": "zstd", "size": 4711,
     "key": "k1", "nonce": <12 bytes>, "body": <bytes>}

A value is encoded as MessagePack, then compressed, then encrypted; docs/codecs.md documents the format for
other languages. The first field is for people: tools that show the map show it. Texts (errors, logs) carry
`[...]$encoded:BASE64`, the Base64 of the same map.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from typing import Any

import msgspec
from msgspec import Raw

from bunqueue.client.codecs.codec import Codec
from bunqueue.errors import CodecError, KeyMissing, NotEncrypted, PayloadTampered, PayloadTooLarge
from bunqueue.protocol.encoded import MARK, is_envelope
from bunqueue.protocol.lenient import DECODE_ERRORS
from bunqueue.protocol.readable import is_readable

MARK_BYTES = MARK.encode()
VERSION = 1
NONCE = 12  # bytes, random: encrypt at most 2^32 payloads with one key
TEXT = re.compile(r"\[[^\[\]]{1,160}\]\$encoded:([A-Za-z0-9+/]+={0,2})")
PROBLEM, WHY, TOGETHER = "problem", "why", "together"
"""Fields that a client adds to an envelope that it cannot open; they are never sent."""

_LIST_OF_ONE = b"\x91"
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_PROBLEMS = {
    each.code: each for each in (CodecError, KeyMissing, NotEncrypted, PayloadTampered, PayloadTooLarge)
}


# -- sealing


def sealed(codec: Codec, plain: bytes) -> bytes:
    """The envelope, as MessagePack, of a value in MessagePack; or the value itself, if the codec only
    compresses and the value is too small.
    """
    size, body = len(plain), plain
    fields: dict[str, Any] = {}
    if codec.compression is not None and size >= codec.compression.min_size:
        packed = _compressed(codec.compression.level, plain)
        if len(packed) < size:
            body = packed
            fields |= {"compression": "zstd", "size": size}
    if codec.encryption is not None:
        key = codec.encryption.first
        nonce = os.urandom(NONCE)
        about = associated(fields.get("compression"), fields.get("size"), key)
        body = codec.encryption.ciphers[key].encrypt(nonce, body, about)
        fields |= {"key": key, "nonce": nonce}
    if not fields and MARK_BYTES not in plain:  # else it might be taken for an envelope
        return plain
    return _encode({MARK: summary(fields, len(body)), "v": VERSION, **fields, "body": body})


def summary(fields: dict[str, Any], size: int) -> str:
    """The description of an encoded value of `size` bytes, for people."""
    ways = []
    if "key" in fields:
        ways.append(f"encrypted with key {fields['key']} (AES-GCM)")
    if "compression" in fields:
        ways.append(f"compressed ({fields['compression']})")
    return f"{', '.join(ways) or 'as it is'}, {_size(size)}"


def _size(size: int) -> str:
    if size < 1000:
        return f"{size} B"
    return f"{size / 1000:.1f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"


def associated(compression: str | None, size: int | None, key: str) -> bytes:
    """The data that encryption protects from changes in addition to the body."""
    return f"bunqueue:{VERSION}:{compression or ''}:{'' if size is None else size}:{key}".encode()


def sealed_text(codec: Codec, text: str) -> str:
    """A text with an envelope in it: about 300 characters plus 4/3 of its UTF-8 size."""
    envelope = sealed(codec, _encode(text))
    return f"[{_decode(envelope)[MARK]}]{MARK}:{base64.b64encode(envelope).decode()}"


# -- opening


def opened(codec: Codec, envelope: dict[str, Any]) -> Raw:
    """The value, as MessagePack. Raises CodecError."""
    if envelope.get("v") != VERSION:
        raise CodecError(f"the version {envelope.get('v')!r} of its envelope is not known here")
    compression, size, key = (envelope.get(name) for name in ("compression", "size", "key"))
    body = _binary(envelope["body"])
    if key is not None:
        body = _decrypted(codec, key, envelope, body)
    if compression is not None:
        body = _decompressed(codec, compression, size, body)
    if not body or not is_readable(_LIST_OF_ONE + body):  # it becomes part of the reply, so one value only
        raise PayloadTampered("what is in it cannot be read")
    return Raw(body)


def _decrypted(codec: Codec, key: Any, envelope: dict[str, Any], body: bytes) -> bytes:
    from cryptography.exceptions import InvalidTag

    known = {} if codec.encryption is None else codec.encryption.ciphers
    if not isinstance(key, str) or key not in known:
        have = ", ".join(map(repr, known)) or "none"
        raise KeyMissing(f"it is encrypted with key {key!r}; the keys here are: {have}", key=str(key))
    about = associated(envelope.get("compression"), envelope.get("size"), key)
    try:
        return known[key].decrypt(_binary(envelope.get("nonce")), body, about)
    except (InvalidTag, ValueError):
        raise PayloadTampered(
            f"it does not fit its seal of key {key!r}: it was changed, or that is another key of this name",
            key=key,
        ) from None


def _decompressed(codec: Codec, compression: Any, size: Any, body: bytes) -> bytes:
    """Check the decompressed size before decompressing."""
    if compression != "zstd":
        raise CodecError(f"its compression {compression!r} is not known here")
    try:
        import zstandard
    except ImportError:
        raise CodecError("it is compressed; run: pip install 'bunqueue[compression]'") from None
    try:
        real = zstandard.frame_content_size(body)
        if not isinstance(size, int) or real != size:
            raise PayloadTampered(f"it says that it has {size!r} bytes, and its content says {real}")
        if size > codec.max_size:
            raise PayloadTooLarge(
                f"decompressed it would have {size} bytes, the codec's max_size is {codec.max_size}"
            )
        plain = zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise PayloadTampered(f"it cannot be decompressed: {error}") from None
    if len(plain) != size:
        raise PayloadTampered(f"it says that it has {size} bytes, and has {len(plain)}")
    return plain


def envelope_in(encoded: str) -> dict[str, Any]:
    """The envelope in a text, decoded from its Base64. Raises CodecError."""
    try:
        envelope = _decode(base64.b64decode(encoded, validate=True))
    except DECODE_ERRORS as error:  # binascii's own error is a ValueError
        raise PayloadTampered(f"it is not readable: {error}") from None
    if not is_envelope(envelope):
        raise CodecError("it is no envelope")
    found: dict[str, Any] = envelope
    return found


def text_of(plain: Raw) -> str:
    """The text that an envelope contained. Raises CodecError."""
    text = _decode(plain)
    if not isinstance(text, str):
        raise PayloadTampered("it is no text")
    return text


def _compressed(level: int, plain: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=level, write_content_size=True).compress(plain)


def _binary(value: Any) -> bytes:
    """The bytes of a field. JSON has no bytes, so there it is Base64."""
    if isinstance(value, bytes):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise PayloadTampered("its envelope has no bytes where they belong") from None


# -- values that could not be opened


def marked(envelope: dict[str, Any], error: CodecError) -> dict[str, Any]:
    """The envelope that the caller gets because it cannot be opened."""
    together = getattr(error, TOGETHER, False)
    return {**envelope, PROBLEM: error.code, WHY: str(error), TOGETHER: together}


def plain_one(value: Any) -> dict[str, Any]:
    """What replaces a value that should have been encrypted but was not."""
    why = NotEncrypted(
        "it is not encrypted, so anyone who reaches the server may have made it; give the codec to what made "
        "it, or take it as it is: Encryption(..., accept_plain=True)"
    )
    return marked({MARK: "not encrypted", "v": VERSION, "body": value}, why)


def problem_of(value: Any, what: str) -> CodecError | None:
    """Why a value is still encoded; None if it is not. The error begins with `what`."""
    if type(value) is not dict or MARK not in value or not is_envelope(value):
        return None
    key = value.get("key")
    code = value.get(PROBLEM)
    if code is None:  # nobody tried: there is no codec
        kind = CodecError if key is None else KeyMissing
        return kind(f"{what} is {value[MARK]}, and there is no codec here; give one: codec=...", key=key)
    text = f"{what} cannot be read: {value.get(WHY)}"
    if code == PayloadTooLarge.code:
        return PayloadTooLarge(text, key=key, together=value.get(TOGETHER) is True)
    return _PROBLEMS.get(code, CodecError)(text, key=key)


def check_opened(value: Any, what: str) -> None:
    """Raise CodecError for a value that is still encoded."""
    problem = problem_of(value, what)
    if problem is not None:
        raise problem
