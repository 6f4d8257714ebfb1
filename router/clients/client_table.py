"""The connections of clients, and the numbers that they have on the wire between processes."""

from __future__ import annotations

from bunqueue.server.links import shard_protocol as link_protocol

from .ports import Client

INCARNATIONS, NUMBERS_EACH = 32, 4096  # of a sibling router; then it starts with the first numbers again


class ClientTable(dict[int, Client]):
    """Clients by number."""

    __slots__ = ("_last", "_most", "base", "draining", "lingering", "open", "origin")

    def __init__(self) -> None:
        self.origin = 0  # of the connections of this host; another one in each host of a cluster
        self.base = 0  # the number below those of this router's connections
        self._most, self._last = link_protocol.MAX_NUMBER, 0
        self.draining = False  # the server stops
        self.lingering: dict[Client, int] = {}  # connections that the router has ended -> sweeps since
        self.open = 0  # sockets, those that linger and those that are being closed among them

    def enter(self, client: Client) -> int:
        """Its number, which is not used again before all others were."""
        number, base, most = self._last, self.base, self._most
        while number in self or number == self._last:
            number = base + (number - base) % most + 1  # 1 .. most
        self._last = number
        self[number] = client
        return number

    def of_host(self, origin: int) -> None:
        """This host is one of a cluster."""
        self.origin = origin
        self._last = self.base = origin << link_protocol.ORIGIN_SHIFT

    def of_router(self, number: int, origin: int, incarnation: int) -> int:
        """This is one of several routers of the host; the first number.  ``incarnation``: the number of its
        earlier starts; an answer to a client of before must not reach one that has its number now."""
        self.origin, self._most = origin, (1 << link_protocol.ROUTER_SHIFT) - 1
        self.base = origin << link_protocol.ORIGIN_SHIFT | number << link_protocol.ROUTER_SHIFT
        self._last = self.base + incarnation % INCARNATIONS * NUMBERS_EACH
        return self._last
