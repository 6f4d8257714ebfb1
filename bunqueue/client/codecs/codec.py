"""The codec options of an app: whether payloads are compressed, and the keys that encrypt them."""

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

from bunqueue.client import engine_override
from bunqueue.client.connection.options import refused, shown, unfit
from bunqueue.errors import OptionError
from bunqueue.protocol.measure import MAX_BYTES

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESSIV

KEY_SIZES = (16, 24, 32)  # bytes: AES-128, AES-192 and AES-256
MIN_HASH_KEY, MAX_HASH_KEY = 16, 64  # bytes; the maximum of BLAKE2b
MIN_SIZE = 1024  # bytes; smaller payloads gain too little to pay for the envelope
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
Key = bytes | str


def new_key() -> str:
    """A new key for `Encryption`: 256 random bits as Base64. Keep it with your other secrets."""
    return base64.b64encode(os.urandom(32)).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """Compress payloads with zstd, in transit and storage. Needs `pip install 'bunqueue[compression]'`."""

    level: int = 3
    """1 (fast) to 19 (small)."""
    min_size: int = MIN_SIZE
    """Payloads with fewer bytes stay unchanged, and so do those that would not shrink."""

    def __post_init__(self) -> None:
        _whole("Compression: level", self.level, 1, 19)
        _whole("Compression: min_size", self.min_size, 0, MAX_BYTES)
        try:
            import zstandard  # noqa: F401
        except ImportError:
            raise _missing("compression") from None


@dataclass(frozen=True)
class Encryption:
    """Encrypts payloads with AES-GCM, in transit and in storage. Needs `pip install 'bunqueue[encryption]'`.

        Encryption({"2026-11": new, "2026-05": old}, hash_key=hash_key)

    The first of the `keys` encrypts, all of them decrypt. Each key has a name, which is not secret. The
    `hash_key` makes hashes of arguments that have to be compared; it must never change. A key is 16, 24 or 32
    bytes, or their Base64; `bunqueue.new_key()` makes one.
    """

    keys: Mapping[str, Key] = field(repr=False)
    hash_key: Key = field(repr=False)
    accept_plain: bool = field(default=False, kw_only=True)
    """Whether to accept unencrypted job data and results, which may come from anyone who can reach the
    server. Use it while jobs wait that were added before there was a key.
    """

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
        """The ciphers by key name."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return {name: AESGCM(_bytes(key, name)) for name, key in self.keys.items()}

    @cached_property
    def secret(self) -> bytes:
        """The key for hashes."""
        return _bytes(self.hash_key, "hash_key")

    @cached_property
    def same(self) -> AESSIV:
        """Deterministic encryption, for text that the server compares and the client decrypts again."""
        from cryptography.hazmat.primitives.ciphers.aead import AESSIV

        return AESSIV(blake2b(self.secret, digest_size=64, person=b"bunqueue same").digest())

    def hidden(self, text: str) -> str:
        """The hash that replaces a text made from a job's arguments, such as the name of its group."""
        return blake2b(text.encode(), digest_size=16, key=self.secret).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Codec:
    """How payloads are encoded between programs and the server: compressed, encrypted, or compressed and then
    encrypted.

        app = Bunqueue("orders", codec=Codec(compression=Compression(), encryption=Encryption(...)))

    All programs that add, run or read the jobs of the app need it. See docs/codecs.md.
    """

    compression: Compression | None = None
    encryption: Encryption | None = None
    max_size: int = MAX_BYTES
    """The maximum bytes of a decompressed payload; one that declares more is refused."""

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
        """The key for hashes of arguments; empty without encryption."""
        return b"" if self.encryption is None else self.encryption.secret


def in_use(codec: Codec | None) -> Codec | None:
    """The codec whose key makes names from arguments; None in the sandbox of a test, where such names stay
    readable, so that tests can compare what programs have given.
    """
    return None if engine_override.current is not None else codec


def secret_of(codec: Codec | None) -> bytes:
    """The key for BLAKE2b hashes of arguments; empty without encryption."""
    codec = in_use(codec)
    return b"" if codec is None else codec.secret


def checked(codec: object) -> Codec | None:
    """Return `codec`. Raises OptionError if it is not a codec."""
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
