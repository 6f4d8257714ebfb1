"""Accepts clients."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import partial
from socket import socket

from bunqueue.logs import get_logger
from bunqueue.server.host.acceptor import Acceptor
from bunqueue.server.host.watched_file import WatchedFile
from bunqueue.server.links import shard_protocol as link_protocol
from bunqueue.server.settings.settings import Settings

from ..errors import StartError
from ..sockets import BoundSockets
from .connection import ClientConnection
from .hub import Hub
from .tls import server_context

BACKLOG = 4096  # for a fleet of workers that reconnects all at once; the kernel caps it (net.core.somaxconn)

_log = get_logger("router")


class TcpListener:
    """Accepts clients on the TCP sockets."""

    def __init__(self, hub: Hub, sockets: BoundSockets, settings: Settings) -> None:
        self._hub = hub
        self._bound = sockets
        self._settings = settings
        self._client_ca = WatchedFile(settings.tls_client_ca)
        self._acceptor = Acceptor(partial(ClientConnection, hub), lambda: hub.clients.open, 0)

    async def start(self, tls: ssl.SSLContext | None) -> None:
        """Accept clients; with ``tls`` only those that complete the handshake."""
        hub, acceptor = self._hub, self._acceptor
        # A refused client gets the reason, unless a handshake would have to come first.
        acceptor.most = hub.limits.connections + (0 if tls else hub.limits.lingering)
        acceptor.tls = tls
        try:
            for sock in self._bound.sockets:
                acceptor.listen(sock, BACKLOG)
        except OSError as error:
            self.close()
            raise self._bound.refusal(error) from error

    def renew_certificate(self) -> bool:
        """Load the certificate files anew; returns whether they are valid. If not, the old certificate stays
        in use."""
        try:
            tls = server_context(self._settings)
        except StartError as error:
            _log.error("the TLS certificate was not renewed", error=str(error))
            return False
        assert tls is not None
        self._renew(tls, again=self._client_ca.changed())
        return True

    def _renew(self, tls: ssl.SSLContext, *, again: bool) -> None:
        """Use this context for further handshakes. With ``again``, connected clients are closed."""
        self._acceptor.renew(tls, again=again)
        if again:
            for client in list(self._hub.clients.values()):
                if client.limited:  # not the gateway's
                    client.finish(link_protocol.BROKEN)

    def take_over(self, sockets: Sequence[socket]) -> None:
        """Accept the clients of another router, which has ended, until it is back."""
        for sock in sockets:
            self._acceptor.listen(sock, BACKLOG)

    def give_back(self, sockets: Sequence[socket]) -> None:
        """The other router is back."""
        for sock in sockets:
            self._acceptor.leave(sock)

    def sweep(self) -> None:
        """Called now and then: log the clients refused since the last call, in one line whatever their
        number."""
        acceptor, hub = self._acceptor, self._hub
        if acceptor.failed:
            _log.warning("clients failed at the TLS handshake", clients=acceptor.failed, last=acceptor.reason)
        hub.limits.refused += acceptor.refused
        acceptor.failed = acceptor.refused = 0

    def close(self) -> None:
        """Stop accepting; keep existing connections."""
        self._acceptor.close()
        self._bound.close()
