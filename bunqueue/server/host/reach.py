"""Who reaches the server's sockets, and what travels to them unencrypted."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import ip_address

from bunqueue.server.settings.settings import Settings


def is_local(sockets: Iterable[socket.socket]) -> bool:
    """Whether only this machine can reach the sockets."""
    return all(ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback for sock in sockets)


def is_overheard(settings: Settings, sockets: Iterable[socket.socket]) -> bool:
    """Whether clients on other machines send their tokens unencrypted."""
    named = settings.auth_token or settings.identities
    return bool(named) and not (settings.tls_cert or is_local(sockets))
