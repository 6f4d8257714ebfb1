"""The base of everything that talks to an engine: it has a connection, which is closed at the end."""

from __future__ import annotations

from types import TracebackType
from typing import Self, Unpack

from bunqueue.client.connection.caller import AsyncCaller
from bunqueue.client.connection.endpoint_options import EndpointOptions, endpoint_of


class AsyncClient:
    """Talks to an engine; see `EndpointOptions`. Connects on first use, and shares the connection with other
    clients of the same server.
    """

    def __init__(self, **endpoint: Unpack[EndpointOptions]) -> None:
        self._caller = AsyncCaller(endpoint_of(endpoint))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(at {self._caller.endpoint.address})"

    async def __aenter__(self) -> Self:
        self._caller.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._caller.leave():
            await self.close()

    async def close(self) -> None:
        """Close the connection; safe to call twice. It and its handles can be used again after it is
        entered again with `async with`.
        """
        await self._caller.close()
