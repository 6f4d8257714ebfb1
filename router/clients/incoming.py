"""The bytes that a client has sent and the router has not routed yet."""

from __future__ import annotations

from ..core.ports import Buffer

LARGE = 256 * 1024  # larger frames are sliced as views: copying them costs more than the view


class Incoming:
    """Mostly nothing: then ``rest`` is None. Else the beginning of a frame, or what is deferred: frames that
    wait for answers to earlier ones, or for the client's next turn."""

    __slots__ = ("_need", "deferred", "in_line", "rest")

    def __init__(self) -> None:
        self.rest: bytearray | None = None
        self.deferred = False  # ``rest`` waits for something other than more bytes
        self.in_line = False  # for its next turn
        self._need = 0  # length of ``rest`` when it contains a whole frame

    def keep(self, rest: Buffer, need: int) -> None:
        """Keep the beginning of a frame, which is whole with ``need`` bytes."""
        self.rest, self._need = bytearray(rest), need

    def defer(self, rest: Buffer = b"") -> None:
        """Keep what has to wait."""
        self.rest, self.deferred = bytearray(rest), True

    def release(self) -> bytes:
        """What was deferred, which may continue."""
        rest, self.rest, self.deferred = self.rest, None, False
        return bytes(rest or b"")

    def add(self, data: bytes) -> Buffer | None:
        """More bytes have come, after ``rest``; returns all of them if that makes a frame whole."""
        rest = self.rest
        assert rest is not None
        rest += data
        if self.deferred or len(rest) < self._need:
            return None
        self.rest = None
        return memoryview(rest) if self._need > LARGE else bytes(rest)

    def discard(self) -> None:
        """The connection has ended: nothing is routed any more, whatever else comes."""
        self.rest = bytearray()

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.rest or b"")
