"""How objects of a backup are packed: zstd, AES-GCM if there is a key, and a checksum around both.

magic, 1 byte: 0 or 1 (encrypted), checksum of the rest (16 bytes), [nonce, 12 bytes,] body
"""

from __future__ import annotations

import base64
import binascii
import os
import shlex
import subprocess
from hashlib import blake2b
from pathlib import Path
from typing import Any

from .targets import TargetError

MAGIC = b"BQB1"
LEVEL = 3  # of zstd: its default; higher ones take much longer for a few per cent
KEY = 32  # bytes
COMMAND_S = 60.0  # for a command to print a key
NONCE = 12  # bytes, random: seal at most 2^32 objects with one key
SUM = 16  # bytes
LARGEST = 1 << 30  # bytes of one object, unpacked
_PLAIN, _ENCRYPTED = b"\0", b"\1"
_HEAD = len(MAGIC) + 1 + SUM


class Damaged(TargetError):
    """An object is not what was stored."""


class KeyRefused(TargetError):
    """A key is missing, superfluous, wrong, or cannot be read."""


def key_from(file: Path) -> bytes:
    """The key in a file: 32 bytes as Base64 (`bunqueue.new_key()`). KeyRefused."""
    try:
        key = _decoded(file.read_bytes()[:1024])
    except OSError as error:
        raise KeyRefused(f"the key file {file} cannot be read: {error.strerror}") from error
    if key is None:
        how = f"head -c {KEY} /dev/urandom | base64 > {file}"
        raise KeyRefused(f"the key file {file} has no key: give {KEY} bytes as Base64, as from: {how}")
    return key


def key_of(file: str, command: str) -> bytes | None:
    """The key in a file, or the one that a command prints; None without both. KeyRefused."""
    if file and command:
        raise KeyRefused("there are a file and a command for the key of the backups: give one of them")
    if command:
        return _key_printed_by(command)
    return key_from(Path(file)) if file else None


def _key_printed_by(command: str) -> bytes:
    """What a command prints: 32 bytes as Base64. It asks a key service, say. Not run by a shell."""
    try:
        done = subprocess.run(shlex.split(command), capture_output=True, timeout=COMMAND_S, check=False)
    except (OSError, ValueError) as error:
        raise KeyRefused(f"the key command {command!r} cannot be run: {error}") from error
    except subprocess.TimeoutExpired:
        raise KeyRefused(f"the key command {command!r} has not ended within {COMMAND_S:g} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
        raise KeyRefused(f"the key command {command!r} failed with status {done.returncode}: {said}")
    key = _decoded(done.stdout[:1024])
    if key is None:
        raise KeyRefused(f"the key command {command!r} printed no key: {KEY} bytes as Base64 are needed")
    return key


def _decoded(text: bytes) -> bytes | None:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) == KEY else None


def fingerprint(key: bytes | None) -> str:
    """Tells keys apart, and tells nothing of them; "" without a key."""
    return "" if key is None else blake2b(b"bunqueue backup", digest_size=8, key=key).hexdigest()


class Sealer:
    """Packs and unpacks objects, with a key or without."""

    def __init__(self, key: bytes | None = None) -> None:
        try:
            import zstandard

            self._zstd = zstandard
            self._cipher: Any = None
            if key is not None:
                from cryptography.hazmat.primitives.ciphers.aead import AESGCM

                self._cipher = AESGCM(key)
        except ImportError as error:
            raise TargetError(f"backups need {error.name}: pip install 'bunqueue[backup]'") from None
        self._page_key = blake2b(key or b"", digest_size=32, person=b"pages").digest()

    def seal(self, name: str, body: bytes) -> bytes:
        """The object of that name; safe to call in several threads."""
        packed = self._zstd.ZstdCompressor(level=LEVEL).compress(body)
        kind = _PLAIN
        if self._cipher is not None:
            nonce = os.urandom(NONCE)
            kind, packed = _ENCRYPTED, nonce + self._cipher.encrypt(nonce, packed, name.encode())
        return b"".join((MAGIC, kind, _sum(packed), packed))

    def open(self, name: str, sealed: bytes) -> bytes:
        """What `seal` was given. Damaged or KeyRefused."""
        kind, packed = sealed[len(MAGIC) : len(MAGIC) + 1], sealed[_HEAD:]
        if sealed[: len(MAGIC)] != MAGIC or sealed[len(MAGIC) + 1 : _HEAD] != _sum(packed):
            raise Damaged(f"{name} is damaged or not whole ({len(sealed):,} bytes)")
        if (kind == _ENCRYPTED) != (self._cipher is not None):
            is_encrypted = kind == _ENCRYPTED
            raise KeyRefused(f"{name} is {'' if is_encrypted else 'not '}encrypted")
        if self._cipher is not None:
            from cryptography.exceptions import InvalidTag

            try:
                packed = self._cipher.decrypt(packed[:NONCE], packed[NONCE:], name.encode())
            except InvalidTag:
                raise KeyRefused(f"{name} was encrypted with another key, or changed") from None
        try:
            size = self._zstd.frame_content_size(packed)
            if not 0 <= size <= LARGEST:
                raise Damaged(f"{name} is damaged: it says that it has {size:,} bytes")
            unpacked: bytes = self._zstd.ZstdDecompressor().decompress(packed)
        except self._zstd.ZstdError as error:
            raise Damaged(f"{name} is damaged: {error}") from error
        return unpacked

    def content_name(self, body: bytes) -> str:
        """A name that only this content has."""
        return blake2b(body, digest_size=SUM, key=self._page_key).hexdigest()

    def page_sum(self, body: bytes) -> bytes:
        """The checksum by which a page is known: 8 bytes."""
        return blake2b(body, digest_size=8, key=self._page_key).digest()


def _sum(packed: bytes) -> bytes:
    return blake2b(packed, digest_size=SUM).digest()
