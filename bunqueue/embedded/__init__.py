"""Embedded mode: a shard inside your own process, engine and storage without sockets.

All queues and workers of a process that name the same file share one engine, even across event loops and
threads.  The guarantees are those of the server: a call returns after its commit.

`open_engines` tracks the engine of each open file, `engine` runs a file's shard, `local_commands` answers
what the router answers on a server, `session` is the client's end.
"""

from __future__ import annotations

try:
    import fcntl as fcntl
except ImportError:
    raise ImportError(
        "embedded mode locks its file with fcntl, which this system does not have; connect to a server on a "
        "system that does: Queue(name, host=...)"
    ) from None

from .open_engines import MEMORY
from .session import EmbeddedTransport, shared_transport

__all__ = ["MEMORY", "EmbeddedTransport", "shared_transport"]
