"""Shared pools: all users of an endpoint in one event loop share one, which closes with the last of them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any

from msgspec import Struct

from bunqueue.client.connection import requests
from bunqueue.client.connection.pool import Pool
from bunqueue.client.connection.transport import Endpoint, FrameHandler
from bunqueue.model import decoders


class _Shared:
    """A pool and the number of its users."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.users = 0


_Pools = dict[Endpoint, _Shared]
_pools: dict[asyncio.AbstractEventLoop, _Pools] = {}
_lock = threading.Lock()


class Lease:
    """One user's share of a pool. Implements `Transport`."""

    def __init__(self, endpoint: Endpoint, pools: _Pools, known: bool) -> None:
        shared = pools.get(endpoint)
        if shared is None:
            shared = pools[endpoint] = _Shared(Pool(endpoint))
        shared.users += 1
        shared.pool.reached |= known
        self._shared: _Shared | None = shared
        self._pools = pools
        self._endpoint = endpoint

    def call(self, command: Struct, *, timeout: float | None = None) -> Coroutine[Any, Any, bytes]:
        if self._shared is None:
            raise requests.closed(command, self._endpoint.address)
        return self._shared.pool.call(command, timeout=timeout)

    def listen(self, handler: FrameHandler | None) -> None:
        raise RuntimeError("others share this session; open a private one to listen")

    async def close(self) -> None:
        shared, self._shared = self._shared, None
        if shared is None:
            return
        shared.users -= 1
        if not shared.users:
            del self._pools[self._endpoint]
            await shared.pool.close()


def lease(endpoint: Endpoint, *, known: bool = False) -> Lease:
    """A share of the pool that all users of `endpoint` in this event loop have in common.

    `known`: the server was already reached over another connection.
    """
    with _lock:
        _sweep()
        return Lease(endpoint, _pools.setdefault(asyncio.get_running_loop(), {}), known)


def _sweep() -> None:
    """Abandon the pools of event loops that were closed before their queues."""
    for loop in [loop for loop, pools in _pools.items() if loop.is_closed() or not pools]:
        for shared in _pools.pop(loop).values():
            shared.pool.abandon()


def _after_fork() -> None:
    """Replace the locks and leave the pools alone: loops and sockets belong to the parent."""
    global _lock
    _lock = threading.Lock()
    decoders.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
