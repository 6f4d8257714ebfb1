"""Which hosts of a cluster are alive, as one of them sees it.

A host counts up a number in the store, its heartbeat, about once a second.  Clocks of different machines are
never compared: what counts is for how long a heartbeat has not changed, by the reader's clock.
"""

from __future__ import annotations

from collections.abc import Sequence

from bunqueue.server.links.pipe_messages import LEASE_S

from .cluster_view import HostRow

PAUSED_S = 2.5  # between two reads of the store: this host was stopped, and not the others
JUST_S = 3.0  # after the end of a connection, the host has just closed it


class Liveness:
    """The heartbeats, and the connections that hosts have closed."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._heartbeats: dict[str, tuple[int, float]] = {}  # by host: the number, and since when it is that
        self._listed: frozenset[str] | None = None  # the hosts of the store; None: it was not read yet
        self._hung_up: dict[str, float] = {}  # when a host has closed its connection
        self._reached: set[str] = set()
        self.read_at = 0.0
        """When the store was read last."""

    def store_read(self, hosts: Sequence[HostRow], now: float) -> None:
        """The store was read."""
        if now - self.read_at > PAUSED_S:
            self._heartbeats.clear()  # what could not be seen proves nothing
        self.read_at = now
        self._listed = frozenset(host.id for host in hosts)
        for host in hosts:
            known = self._heartbeats.get(host.id)
            if known is None or known[0] != host.heartbeat:
                self._heartbeats[host.id] = host.heartbeat, now

    def reached(self, host: str) -> None:
        """This host has a connection to another one."""
        self._reached.add(host)

    def unreached(self, host: str) -> None:
        """The connection to it is lost."""
        self._reached.discard(host)

    def disconnected(self, host: str, now: float) -> None:
        """A host has no connection to this one any more."""
        self._hung_up[host] = now

    def is_alive(self, host: str) -> bool:
        """Whether a host's heartbeat was young when the store was read last."""
        if host == self._me:
            return True
        known = self._heartbeats.get(host)
        listed = self._listed is None or host in self._listed
        return listed and known is not None and self.read_at - known[1] < LEASE_S

    def age_s(self, host: str, now: float) -> float | None:
        """The age of a host's heartbeat; None while it is not known."""
        known = self._heartbeats.get(host)
        return None if known is None else now - known[1]

    def has_just_hung_up(self, host: str, now: float) -> bool:
        """Whether a host has just closed its connection, as one whose process was killed does."""
        return host not in self._reached and now - self._hung_up.get(host, float("-inf")) < JUST_S
