"""Made by scripts/unasync.py from client/base.py; do not edit."""

from __future__ import annotations

from types import TracebackType
from typing import Self, Unpack

from bunqueue.client.connection.caller import Caller
from bunqueue.client.connection.endpoint_options import EndpointOptions, endpoint_of


class Client:
    """Talks to an engine; see `EndpointOptions`. Connects on first use, and shares the connection with other
    clients of the same server.
    """

    def __init__(self, **endpoint: Unpack[EndpointOptions]) -> None:
        self._caller = Caller(endpoint_of(endpoint))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(at {self._caller.endpoint.address})"

    def __enter__(self) -> Self:
        self._caller.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._caller.leave():
            self.close()

    def close(self) -> None:
        """Close the connection; safe to call twice. It and its handles can be used again after it is
        entered again with `with`.
        """
        self._caller.close()
