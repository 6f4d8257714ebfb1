"""Frames: a 4-byte big-endian length, then that many bytes of MessagePack."""

from __future__ import annotations

import struct

MAX_FRAME = 64 * 1024 * 1024  # bytes of payload; the specification's limit: longer frames end the connection
HEADER = 4

_length_at = struct.Struct(">I").unpack_from
pack_length = struct.Struct(">I").pack
"""The header of a frame with a payload of so many bytes."""


class FrameTooLarge(ValueError):
    """The announced length is above MAX_FRAME."""

    def __init__(self, length: int, limit: int) -> None:
        super().__init__(f"Frame too large: {length} bytes (max {limit})")


def frame(payload: bytes) -> bytes:
    """``payload`` with its length in front."""
    return pack_length(len(payload)) + payload


class FrameSplitter:
    """Takes bytes in pieces of any size and returns whole frames.

    Costs: a piece that holds only whole frames is sliced once per frame, without other copies.  A frame that
    arrives in many pieces is collected in one growing buffer.
    """

    __slots__ = ("_limit", "_need", "_rest", "broken")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._need = 0  # total bytes needed before the next check
        self.broken: FrameTooLarge | None = None  # set once; no more frames are returned after that

    @property
    def partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """The frames (length prefix included) that ``data`` completes.

        A length above the limit sets ``broken`` at once; the frames before it are still returned.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                return []
            data = bytes(self._rest)
            self._rest.clear()
        frames: list[bytes] = []
        if self.broken:
            return frames
        start, size = 0, len(data)
        if size >= HEADER and _length_at(data)[0] == size - HEADER <= self._limit:  # usually it is one frame
            return [data]
        need = HEADER
        while size - start >= HEADER:
            length = _length_at(data, start)[0]
            if length > self._limit:
                self.broken = FrameTooLarge(length, self._limit)
                return frames
            end = start + HEADER + length
            if end > size:
                need = HEADER + length
                break
            frames.append(data[start:end])
            start = end
        if start < size:
            self._rest += data[start:]
            self._need = need
        return frames
