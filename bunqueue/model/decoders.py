"""Makes msgspec's decoders, one thread at a time.

msgspec (0.22) resolves the annotations of a class in Python, when its first decoder is made. Meanwhile it
already gives the class to other threads, and a decoder that meets a field without its type ends the process
with SIGSEGV. So whatever is made after a program's start, where there may be threads, is made here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.msgpack import Decoder

T = TypeVar("T")
S = TypeVar("S", bound=type[Struct])
Hook = Callable[[Any, Any], Any]

_making = threading.RLock()  # a hook, or the import of a module, may make another one
_resolved: set[type[Struct]] = set()


def decoder(kind: type[T], dec_hook: Hook | None = None) -> Decoder[T]:
    """A decoder of MessagePack. Raises TypeError for a type that msgspec does not take."""
    with _making:
        return Decoder(kind, dec_hook=dec_hook)


def resolved(kind: S) -> S:
    """The class, whose annotations are resolved: any thread may convert to it."""
    if kind not in _resolved:
        decoder(kind)
        _resolved.add(kind)
    return kind


def after_fork() -> None:
    """Call this in a forked process: the thread that was making one may not exist there."""
    global _making
    _making = threading.RLock()
