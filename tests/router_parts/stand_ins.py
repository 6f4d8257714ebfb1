"""What stands in for the other end of a connection between hosts."""

from __future__ import annotations


class Uplink:
    """The connection to the other host: it keeps what it is given."""

    peer, full = "b", False

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def put(self, part: bytes) -> None:
        self.sent.append(part)
