"""Reports the server's state to a service manager, with the protocol of sd_notify(3).

The manager names a datagram socket in ``NOTIFY_SOCKET``; without that variable nothing is sent. A message
that cannot be delivered must never harm the server: the manager has a time limit of its own.
"""

from __future__ import annotations

import os
import socket

SEND_TIMEOUT_S = 1.0
"""The longest wait for a manager that does not read; its socket buffer holds far more than we ever send."""


def notify(state: str) -> bool:
    """Send ``state``, for example ``READY=1`` or ``STOPPING=1``; newlines separate several assignments.

    True if it was delivered; False without a manager, or if it could not be reached. Blocks for at most
    ``SEND_TIMEOUT_S`` seconds, in practice for microseconds.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # the abstract namespace, which has no file
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.settimeout(SEND_TIMEOUT_S)
            connection.connect(address)
            connection.sendall(state.encode())
    except OSError:
        return False
    return True
