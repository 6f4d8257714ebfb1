"""What an app says of its codec: whether payloads are compressed, and with which keys they are encrypted."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

from bunqueue.client import substitute
from bunqueue.client.connection.options import refused, shown, unfit
from bunqueue.errors import OptionError
from bunqueue.protocol.measure import MAX_BYTES

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

KEY_SIZES = (16, 24, 32)  # bytes: AES-128, AES-192 and AES-256
MIN_HASH_KEY, MAX_HASH_KEY = 16, 64  # bytes; the most that BLAKE2b takes
MIN_SIZE = 1024  # bytes; what is smaller gains too little to pay for the envelope
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
Key = bytes | str


def new_key() -> str:
    """A new key for `Encryption`: 256 random bits as Base64. Keep it where your other secrets are."""
    return base64.b64encode(os.urandom(32)).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """Payloads travel and are stored as zstd. Needs `pip install 'bunqueue[compression]'`."""

    level: int = 3
    """1 (fast) to 19 (small)."""
    min_size: int = MIN_SIZE
    """Payloads of fewer bytes stay as they are, and so do those that would not become smaller."""

    def __post_init__(self) -> None:
        _whole("Compression: level", self.level, 1, 19)
        _whole("Compression: min_size", self.min_size, 0, MAX_BYTES)
        try:
            import zstandard  # noqa: F401
        except ImportError:
            raise _missing("compression") from None


@dataclass(frozen=True)
class Encryption:
    """Payloads travel and are stored encrypted with AES-GCM. Needs `pip install 'bunqueue[encryption]'`.

        Encryption({"2026-11": new, "2026-05": old}, hash_key=hash_key)

    The first of the `keys` encrypts, all of them decrypt; each has a name, which is not secret. The
    `hash_key` stands in for arguments where they have to be compared, and never changes. A key is 16, 24 or
    32 bytes, or their Base64; `bunqueue.new_key()` makes one.
    """

    keys: Mapping[str, Key] = field(repr=False)
    hash_key: Key = field(repr=False)
    accept_plain: bool = field(default=False, kw_only=True)
    """Whether data of jobs and results count that are not encrypted, and so may be from anyone who reaches
    the server: as long as jobs wait that were added before there was a key."""

    def __post_init__(self) -> None:
        try:
            import cryptography  # noqa: F401
        except ImportError:
            raise _missing("encryption") from None
        if not isinstance(self.accept_plain, bool):
            raise refused("Encryption: accept_plain", self.accept_plain, "is not allowed; give True or False")
        if not isinstance(self.keys, Mapping) or not self.keys:
            raise OptionError(
                "Encryption: keys: give at least one, as {name: key}; the first one encrypts", field="keys"
            )
        for name, key in self.keys.items():
            if not isinstance(name, str) or not _KEY_ID.fullmatch(name):
                raise OptionError(
                    f"Encryption: keys: the name {shown(name)} is not allowed; give 1 to 64 letters, digits, "
                    f"dots, dashes and underscores",
                    field="keys",
                    value=name,
                )
            if len(_bytes(key, f"the key {name!r}")) not in KEY_SIZES:
                raise OptionError(
                    f"Encryption: the key {name!r} (not shown) has {len(_bytes(key, name))} bytes; give 16, "
                    f"24 or 32, as bunqueue.new_key() does"
                )
        if not MIN_HASH_KEY <= len(_bytes(self.hash_key, "hash_key")) <= MAX_HASH_KEY:
            raise OptionError(
                f"Encryption: hash_key (not shown) has {len(_bytes(self.hash_key, 'hash_key'))} bytes; give "
                f"{MIN_HASH_KEY} to {MAX_HASH_KEY}, as bunqueue.new_key() does"
            )

    @property
    def first(self) -> str:
        """The name of the key that encrypts."""
        return next(iter(self.keys))

    @cached_property
    def ciphers(self) -> Mapping[str, AESGCM]:
        """By the names of the keys."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return {name: AESGCM(_bytes(key, name)) for name, key in self.keys.items()}

    @cached_property
    def secret(self) -> bytes:
        """The key of hashes."""
        return _bytes(self.hash_key, "hash_key")

    @cached_property
    def same(self) -> AESSIV:
        """Makes the same text of the same text, for what the server compares and we read again."""
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV

        return AESSIV(blake2b(self.secret, digest_size=64, person=b"bunqueue same").digest())

    def hidden(self, text: str) -> str:
        """What stands for a text that a job's arguments have given, such as the name of its group."""
        return blake2b(text.encode(), digest_size=16, key=self.secret).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Codec:
    """How payloads are encoded between programs and the server: compressed, encrypted, or first one and then
    the other.

        app = Bunqueue("orders", codec=Codec(compression=Compression(), encryption=Encryption(...)))

    All programs that add, run or read the jobs of the app need it. See docs/codecs.md.
    """

    compression: Compression | None = None
    encryption: Encryption | None = None
    max_size: int = MAX_BYTES
    """Bytes that a payload may have when it is decompressed; one that says that it has more is refused."""

    def __post_init__(self) -> None:
        for name, kind in (("compression", Compression), ("encryption", Encryption)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise refused(f"codec: {name}", value, f"is not allowed; give a {kind.__name__}")
        if self.compression is None and self.encryption is None:
            raise unfit("codec", "it does nothing; give compression, encryption, or both")
        _whole("codec: max_size", self.max_size, 1, 1 << 30)

    @property
    def secret(self) -> bytes:
        """The key of hashes that are made of arguments; without encryption they have none."""
        return b"" if self.encryption is None else self.encryption.secret


def in_use(codec: Codec | None) -> Codec | None:
    """The codec where names are made of arguments with its key: within the sandbox of a test these stay as
    they are, so that tests compare what programs have given."""
    return None if substitute.current is not None else codec


def secret_of(codec: Codec | None) -> bytes:
    """The key of hashes of arguments for BLAKE2b; empty without encryption."""
    codec = in_use(codec)
    return b"" if codec is None else codec.secret


def checked(codec: object) -> Codec | None:
    """OptionError for what is no codec."""
    if codec is None or isinstance(codec, Codec):
        return codec
    raise refused("codec", codec, "is not allowed; give a bunqueue.Codec")


def _bytes(key: Key, what: str) -> bytes:
    if isinstance(key, bytes):
        return key
    try:
        return base64.b64decode(key, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise OptionError(f"Encryption: {what} (not shown) is no Base64; give that, or bytes") from None


def _whole(what: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise refused(what, value, f"is not allowed; give a whole number from {low} to {high}")


def _missing(extra: str) -> OptionError:
    return unfit("codec", f"{extra} is not installed here; run: pip install 'bunqueue[{extra}]'")
