"""What the hosts of a cluster exchange: every second which workers are registered where, and their loads; at
once from where wrong tokens come.
"""

from __future__ import annotations

import os
import time

from msgspec.msgpack import Decoder

from bunqueue.protocol.commands.workers import WorkerList
from bunqueue.server.links import host_protocol as host_link

from ..clients.hub import Hub
from ..clients.own_commands import now_ms
from .links import Links
from .wire import HostConnection

_decode_workers = Decoder(WorkerList).decode


class Exchange:
    """What this host has sent, and has received."""

    def __init__(self, hub: Hub, links: Links, me: str) -> None:
        self._hub, self._links, self._me = hub, links, me
        self._loads: dict[str, float] = {}
        hub.unauthenticated.on_wrong_token.append(self._tell_of_wrong_token)

    def load_of(self, host: str) -> float | None:
        """How busy a host's machine is, see `host_link.Load`; None while it is not known."""
        return self._loads.get(host)

    def send(self) -> None:
        """Tell the other hosts who is registered here, if that has changed, and the load of this machine."""
        listing = host_link.encode(self._hub.workers.here(now_ms()))
        load = self._loads[self._me] = os.getloadavg()[0] / (os.cpu_count() or 1)
        body = host_link.encode(host_link.Load(load))
        for uplink in self._links.uplinks:
            if uplink.workers_sent != listing:
                uplink.workers_sent = listing
                uplink.send(host_link.WORKERS, listing)
            uplink.send(host_link.LOAD, body)

    def workers(self, host: str, body: bytes) -> None:
        """Another host tells who is registered there."""
        self._hub.workers.elsewhere(host, _decode_workers(body))

    def load(self, host: str, body: bytes) -> None:
        """Another host reports its load."""
        self._loads[host] = host_link.decode_load(body).per_core

    def wrong_token(self, connection: HostConnection, body: bytes) -> None:
        """A wrong token was presented to another host, which counts and logs it."""
        self._hub.unauthenticated.wrong_elsewhere(body.decode(), connection, counted=False)

    def _tell_of_wrong_token(self, address: str, told_by: object) -> None:
        """An address that guesses at one host is slowed down at all.  Once it is, no more messages are
        sent about it."""
        throttle = self._hub.unauthenticated.throttle
        if not isinstance(told_by, HostConnection) and not throttle.is_throttled(address, time.monotonic()):
            for uplink in self._links.uplinks:
                uplink.send(host_link.WRONG_TOKEN, address.encode())

    def disconnected(self, host: str) -> None:
        """A host has no connection to this one any more."""
        self._loads.pop(host, None)
        self._hub.workers.elsewhere(host, None)
