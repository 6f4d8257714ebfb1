"""Says which fields of commands carry user data, and encodes them.

Every field that holds any value (`Raw`) is encoded, including those of commands declared later; of the text
fields only those named here. Names, ids, queues, groups, tags, headers and times are not encoded, because the
server works with them.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import blake2b
from typing import Any, get_args, get_type_hints

from msgspec import Raw, Struct
from msgspec.structs import replace

from bunqueue.client.codecs.codec import Codec, Encryption
from bunqueue.client.codecs.envelope import sealed, sealed_text
from bunqueue.errors import CodecError, KeyMissing, NotEncrypted, PayloadTampered, PayloadTooLarge
from bunqueue.model.job import NIL, UNDEFINED
from bunqueue.model.workflow import MAX_ERROR
from bunqueue.protocol.commands.workflows import StepRecord

_NOTHING = frozenset({bytes(NIL), bytes(UNDEFINED)})
SAME = "$same:"
"""The prefix of texts that are encrypted deterministically."""
HEADING = "Traceback (most recent call last):"
MAX_STACK = 16_384  # characters of a traceback that servers store with an attempt
_OVERHEAD = 500  # characters of a text's envelope, with some margin
_TYPED = re.compile(r"([A-Za-z_][\w.]{0,200})(?:: |$)")
_OUR_OWN = tuple(
    each.__name__ for each in (CodecError, KeyMissing, NotEncrypted, PayloadTampered, PayloadTooLarge)
)
Encoding = Callable[[Codec, Any, Any], Any]
"""Called with the codec, a value, and the command or struct whose field it is."""


def encoded(codec: Codec, command: Struct) -> Struct:
    """The command to send; the given one stays unchanged."""
    changes = {}
    for name, encoding in _plan(type(command)):
        value = getattr(command, name)
        if value is not None and (found := encoding(codec, value, command)) is not value:
            changes[name] = found
    return replace(command, **changes) if changes else command


@cache
def _plan(kind: type[Struct]) -> tuple[tuple[str, Encoding], ...]:
    """The fields of a command that may carry data, each with its encoding."""
    hints = get_type_hints(kind)
    found: list[tuple[str, Encoding]] = []
    for name in kind.__struct_fields__:
        encoding = _SPECIAL.get((_origin(kind), name)) or _by_type(hints[name])
        if name != "req_id" and encoding is not None:
            found.append((name, encoding))
    return tuple(found)


def _origin(kind: type[Struct]) -> str:
    return str(kind.__struct_config__.tag or kind.__name__)


def _by_type(hint: Any) -> Encoding | None:
    parts = list(_parts(hint))
    if Raw in parts:
        return _each(_value)
    if any(isinstance(part, type) and issubclass(part, Struct) and _plan(part) for part in parts):
        return _each(_struct)
    return None


def _parts(hint: Any) -> Iterable[Any]:
    yield hint
    for part in get_args(hint):
        yield from _parts(part)


def _each(encoding: Encoding) -> Encoding:
    """The same encoding for each value of a list or a map."""

    def encode(codec: Codec, value: Any, owner: Any) -> Any:
        if isinstance(value, list):
            return [encode(codec, each, owner) for each in value]
        if isinstance(value, dict):
            return {name: encode(codec, each, owner) for name, each in value.items()}
        return encoding(codec, value, owner)

    return encode


def _value(codec: Codec, value: Any, owner: Any) -> Any:
    if not isinstance(value, Raw):
        return value
    plain = bytes(value)
    if plain in _NOTHING:  # an absent value is visible anyway
        return value
    return Raw(sealed(codec, plain))


def _struct(codec: Codec, value: Any, owner: Any) -> Any:
    return encoded(codec, value) if isinstance(value, Struct) else value


# -- texts, which are encrypted, but never compressed


def _text(most: int) -> Encoding:
    def encode(codec: Codec, text: str, owner: Any) -> str:
        if codec.encryption is None or not text or is_our_own(text):
            return text
        return sealed_text(Codec(encryption=codec.encryption), _truncate(text, most))

    return encode


def _error(most: int) -> Encoding:
    """Keep an error's class, because errors are grouped by it, and encrypt its message."""
    text_of = _text(most)

    def encode(codec: Codec, text: str, owner: Any) -> str:
        start = 0
        typed = _TYPED.match(text) if codec.encryption is not None and not is_our_own(text) else None
        if typed and (isinstance(owner, StepRecord) or typed[1] in _classes(owner)):
            start = typed.end()  # any other word before a colon is not a class
        return text[:start] + str(text_of(codec, text[start:], owner))

    return encode


def _classes(owner: Any) -> Iterable[str]:
    """The names of an error's classes, as far as they are known: other words are not taken for classes."""
    return [name.rpartition(".")[2] for name in getattr(owner, "error_types", None) or ()]


def _stack(codec: Codec, lines: str | list[str], owner: Any) -> str | list[str]:
    if codec.encryption is None:
        return lines
    text = lines if isinstance(lines, str) else "\n".join(lines)
    text = text.removeprefix(HEADING).lstrip("\n")
    room = _room(MAX_STACK)
    while len(text.encode()) > room:  # the error is at the end
        text = text[len(text) // 8 + 1 :]
    return [HEADING, sealed_text(Codec(encryption=codec.encryption), text)]


def _room(most: int) -> int:
    """The maximum UTF-8 bytes whose envelope is a text of at most `most` characters."""
    return (most - _OVERHEAD) * 3 // 4


def _truncate(text: str, most: int) -> str:
    data, room = text.encode(), _room(most)
    return text if len(data) <= room else data[: room - 3].decode(errors="ignore") + "..."


def is_our_own(text: str) -> bool:
    """Whether a text reports that something could not be decoded: it has no user data, and must stay
    readable.
    """
    return text.startswith(_OUR_OWN)


# -- values that the server compares


def _hash(codec: Codec, text: str, owner: Any) -> str:
    secret = codec.secret
    return blake2b(text.encode(), digest_size=16, key=secret).hexdigest() if secret else text


def _same(codec: Codec, text: str, owner: Any) -> str:
    """Encrypt a fingerprint of arguments: equal arguments give equal texts, and only the key reveals them."""
    if codec.encryption is None:
        return text
    return SAME + base64.urlsafe_b64encode(codec.encryption.same.encrypt(text.encode(), None)).decode()


def same_again(encryption: Encryption, text: str) -> str:
    """Decrypt a text made by `_same`; return the text itself if that fails."""
    from cryptography.exceptions import InvalidTag

    try:
        return encryption.same.decrypt(base64.urlsafe_b64decode(text.removeprefix(SAME)), None).decode()
    except (InvalidTag, ValueError):
        return text


_SPECIAL: dict[tuple[str, str], Encoding] = {
    ("FAIL", "error"): _error(1 << 16),
    ("FAIL", "stack"): _stack,
    ("FailFields", "error"): _error(1 << 16),
    ("FailFields", "stack"): _stack,
    ("AddLog", "message"): _text(1 << 16),
    ("Progress", "message"): _text(4096),
    ("StepRecord", "error"): _error(MAX_ERROR),
    ("StepRecord", "unfit"): _text(MAX_ERROR),
    ("StepRecord", "arguments"): _same,
    ("PUSH", "idempotency_hash"): _hash,
    ("PUSHB", "idempotency_hash"): _hash,
}
"""By the tag of a command or the name of a struct, and the field."""
