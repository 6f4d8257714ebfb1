"""Options for every socket to a server, and how to open a blocking one."""

from __future__ import annotations

import socket
import ssl
import sys

from bunqueue.client.connection.options import ConnectionOptions, seconds
from bunqueue.client.connection.tls import tls_problem
from bunqueue.client.connection.transport import Endpoint

KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # seconds, seconds, probes


def tune(sock: socket.socket, options: ConnectionOptions) -> None:
    """Send small frames without delay, and let the kernel detect a vanished peer."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if sys.platform == "linux":
        unanswered = int(seconds(options.command_timeout) * 1000)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unanswered)


def connect(endpoint: Endpoint, timeout: float) -> socket.socket:
    """A connected socket whose operations take at most `timeout` seconds. Raises OSError or TlsError."""
    sock = socket.create_connection((endpoint.host, endpoint.port), timeout)
    try:
        tune(sock, endpoint.options)
        context = endpoint.tls_context()
        if context is not None:
            sock = context.wrap_socket(sock, server_hostname=endpoint.server_name)
    except ssl.SSLError as error:
        sock.close()
        raise tls_problem(error, endpoint.address) or error from None
    except BaseException:
        sock.close()
        raise
    return sock
