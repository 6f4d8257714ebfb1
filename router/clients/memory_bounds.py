"""Bounds what the router keeps for all its clients together: partial frames and unread replies."""

from __future__ import annotations

from bunqueue.protocol.framing import MAX_FRAME

from .ports import Client, Clients

MIB = 1024 * 1024
MAX_KEPT = 1024 * MIB  # bytes for all clients; above it, the clients that keep most are dropped
MAX_UNREAD = 128 * MIB  # bytes for one client; two of the largest frames
MAX_UNKNOWN = 64 * 1024  # bytes of a frame from a client that has not authenticated yet
CHECK_EVERY = 16 * MIB  # bytes received or kept between two checks of all clients

SILENT_SWEEPS = 12  # a minute, as in the reference: after it the rest of a partial frame will not come
SLOW_SWEEPS = 60  # five minutes: a frame must be complete by then, unless PROGRESS is made
PROGRESS = 64 * 1024  # bytes of a frame between two sweeps


def longest_frame(*, known: bool) -> int:
    """The longest frame that a client may send."""
    return MAX_FRAME if known else MAX_UNKNOWN


class Bounds:
    """Drops clients that make the router keep too much, or for too long."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.routers = 1  # of the host, which share the bound
        self._grown = 0  # bytes since the last check of all clients
        self._frames: dict[Client, tuple[int, int]] = {}  # bytes that were there, sweeps since
        self._unread: dict[Client, tuple[int, int]] = {}  # the same, of what a client has to read

    def wrote(self, client: Client, size: int) -> None:
        """A client that does not read was sent so many bytes more."""
        if client.unread > MAX_UNREAD:
            client.drop("dropped a client that does not read")
        else:
            self.grew(size)

    def grew(self, size: int) -> None:
        """``size`` more bytes are kept."""
        self._grown += size
        if self._grown < CHECK_EVERY:
            return
        self._grown = 0
        kept = {client: client.unrouted + client.unread for client in self._clients.values()}
        excess = sum(kept.values()) - self._most_kept
        if excess > 0:
            for client in sorted(kept, key=kept.__getitem__, reverse=True):
                client.drop("dropped the client that had most bytes waiting")
                excess -= kept[client]
                if excess <= 0:
                    break

    @property
    def _most_kept(self) -> int:
        return MAX_KEPT if self.routers == 1 else max(2 * MAX_UNREAD, MAX_KEPT // self.routers)

    def sweep(self) -> None:
        """End clients that neither complete a frame nor read what they asked for, and half-closed ones that
        have waited too long for an answer."""
        frames, unread = {}, {}
        for client in list(self._clients.values()):
            if client.behind and client.unread:
                unread[client] = _without_change(self._unread.get(client), client.unread, 1, shrinks=True)
                if unread[client][1] > SILENT_SWEEPS:
                    client.drop("dropped a client that reads nothing")
            elif client.half_closed:
                client.silent += 1  # sweeps since its last answer
                if client.silent > SILENT_SWEEPS:
                    client.vanish()
            elif client.stuck:
                client.silent += 1
                frames[client] = _without_change(self._frames.get(client), client.unrouted, PROGRESS)
                if client.silent > SILENT_SWEEPS or frames[client][1] > SLOW_SWEEPS:
                    client.drop("client fell silent within a frame")
            else:
                client.silent = 0
        self._frames, self._unread = frames, unread


def _without_change(
    before: tuple[int, int] | None, size: int, enough: int, *, shrinks: bool = False
) -> tuple[int, int]:
    """The size to compare with, and the number of sweeps without a change by ``enough``.

    A smaller size than before means another frame or, with ``shrinks``, the wanted progress.
    """
    if before is None or size < before[0] or (not shrinks and size - before[0] >= enough):
        return size, 0
    return (max(size, before[0]) if shrinks else before[0]), before[1] + 1
