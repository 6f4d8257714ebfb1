"""A transport wrapped with a codec. Implements `Transport`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from bunqueue.client.codecs.codec import Codec
from bunqueue.client.codecs.incoming import decoded
from bunqueue.client.codecs.outgoing import encoded

if TYPE_CHECKING:
    from bunqueue.client.connection.transport import FrameHandler, Transport


class CodedTransport:
    """Encodes outgoing commands and decodes incoming replies."""

    def __init__(self, inner: Transport, codec: Codec) -> None:
        self._inner = inner
        self._codec = codec

    async def call(self, command: Struct, *, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        reply = await self._inner.call(encoded(self._codec, command), timeout=timeout)
        return decoded(self._codec, reply, command)

    def listen(self, handler: FrameHandler | None) -> None:
        if handler is None:
            self._inner.listen(None)
            return

        def receive(payload: bytes | None) -> None:
            handler(None if payload is None else decoded(self._codec, payload))

        self._inner.listen(receive)

    async def close(self) -> None:
        await self._inner.close()
