"""The fast path for blocking calls: a few blocking connections to a server, shared by all threads.

It handles only the case without trouble. Everything else, such as waiting for an unavailable server or for a
reply that is slow by design, is left to the pool in the background loop.
"""

from __future__ import annotations

import atexit
import os
import random
import threading
import time
from contextlib import suppress
from math import inf
from weakref import WeakSet

from msgspec import Struct

from bunqueue.client.connection import requests
from bunqueue.client.connection.blocking_connection import BlockingConnection
from bunqueue.client.connection.options import seconds
from bunqueue.client.connection.transport import Endpoint
from bunqueue.client.connection.wire import next_number
from bunqueue.errors import BunqueueError

HANGS = 4.0  # seconds without a reply after which another host is tried, if there is one
PATIENCE = 1.0  # seconds to connect; if it takes longer, the asynchronous pool waits instead


class BlockingPool:
    """At most `pool_size` connections to one server, for any number of threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        options = endpoint.options
        self.users = 0
        self.reached = False
        """Whether there ever was a connection."""
        self.closed = False
        self._endpoint = endpoint
        self._connect_timeout = min(PATIENCE, seconds(options.connect_timeout))
        self._timeout = seconds(options.command_timeout)
        self._max_silence = seconds(options.ping_interval) or inf
        self._failures = 0  # failed attempts to connect, in a row
        self._turn = random.randrange(endpoint.count)  # index of the address that answered last
        self._not_before = 0.0  # when to try to connect again
        self.forget()

    def forget(self) -> None:
        """Forget all connections: in a forked child they belong to the parent."""
        # Each slot holds an idle connection, or None. Single operations on the list need no lock.
        # Take the connection that was returned last first: it is the most likely to be alive.
        self._slots: list[BlockingConnection | None] = [None] * self._endpoint.options.pool_size

    def call(self, command: Struct) -> bytes | None:
        """The raw reply to `command`; None if it has to go through the asynchronous pool.

        Raises ConnectionLost, CommandTimeout or PayloadError.
        """
        number = next_number()
        frame = requests.encode_frame(command, number)
        try:
            connection = self._slots.pop()
        except IndexError:  # all are in use
            return None
        kept, since = None, time.monotonic()
        try:
            connection = self._usable(connection)
            if connection is None:
                return None
            head, payload = connection.exchange(frame, number)
            kept = connection
        except TimeoutError:
            if self._endpoint.others and requests.is_repeatable(
                command, connection is not None and connection.knows_pushes
            ):
                self._turn += 1  # that host may be hanging
                requests.age(command, since)
                return None
            raise requests.timed_out(command, self._endpoint.address) from None
        except OSError as error:
            if requests.is_repeatable(command, connection is not None and connection.knows_pushes):
                requests.age(command, since)
                return None
            raise requests.lost(command, self._endpoint.address, str(error)) from None
        finally:
            if connection is not None and connection is not kept:
                connection.close()
            self._slots.append(kept)
            if self.closed:
                self.close()
        if head.may_pass:
            return None  # it was not executed; the asynchronous pool retries it
        return payload

    def _usable(self, connection: BlockingConnection | None) -> BlockingConnection | None:
        """A connection that seems to be alive: this one, or a new one if it can be opened quickly."""
        if connection is not None:
            if time.monotonic() - connection.used_at < self._max_silence and connection.is_quiet:
                return connection
            connection.close()
        return self._connect()

    def _connect(self) -> BlockingConnection | None:
        options = self._endpoint.options
        if time.monotonic() < self._not_before:
            return None
        connection = self._first_that_answers()
        if connection is None:  # the asynchronous pool gets the same errors, and raises one of them
            self._failures += 1
            self._not_before = time.monotonic() + options.retry_delay(self._failures, random.random())
            return None
        self._failures = 0
        self.reached = True
        _all.add(connection)
        return connection

    def _first_that_answers(self) -> BlockingConnection | None:
        """A connection to the first address that answers."""
        for _ in range(self._endpoint.count):
            with suppress(OSError, BunqueueError):
                return BlockingConnection(
                    self._endpoint.at(self._turn),
                    connect_timeout=self._connect_timeout,
                    timeout=min(self._timeout, HANGS) if self._endpoint.others else self._timeout,
                )
            self._turn += 1
        return None

    def close(self) -> None:
        """Close idle connections now. Those in use are closed when their command ends."""
        self.closed = True
        for slot, connection in enumerate(self._slots):
            if connection is not None:
                self._slots[slot] = None
                connection.close()


_shared: dict[Endpoint, BlockingPool] = {}
_lock = threading.Lock()
_all: WeakSet[BlockingConnection] = WeakSet()


def share(endpoint: Endpoint) -> BlockingPool:
    """The pool that all blocking users of `endpoint` share. Return it with `release`."""
    with _lock:
        connections = _shared.get(endpoint)
        if connections is None:
            connections = _shared[endpoint] = BlockingPool(endpoint)
        connections.users += 1
    return connections


def release(connections: BlockingPool, endpoint: Endpoint) -> None:
    """Drop one user. The last one closes the connections."""
    with _lock:
        connections.users -= 1
        if connections.users:
            return
        del _shared[endpoint]
    connections.close()


def _close_all() -> None:
    """Close all connections at exit, for programs that never close their queues."""
    for connection in list(_all):
        connection.close()


def _after_fork() -> None:
    """Close the child's copies of its parent's sockets, so that they end when the parent closes them."""
    global _lock
    _lock = threading.Lock()
    _close_all()
    for connections in _shared.values():
        connections.forget()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
