"""A receiver of webhooks: a real HTTP server in a thread, which answers as it is told to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple

from .waiting import wait_until


class Delivery(NamedTuple):
    """A request that came."""

    headers: dict[str, str]  # names in lower case
    body: bytes
    status: int  # that it was answered

    @property
    def message(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


class Receiver:
    """What came, and what is answered."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/hook?of=tests"
        self.deliveries: list[Delivery] = []
        self.status = 200
        self.statuses: list[int] = []  # for the next ones, before `status`

    def arrived(self) -> list[dict[str, Any]]:
        """The messages that were accepted, in the order in which they came."""
        return [each.message for each in self.deliveries if each.status < 300]

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many were accepted."""
        wait_until(lambda: len(self.arrived()) >= count, f"{count} deliveries have arrived")
        return self.arrived()

    def take(self, headers: dict[str, str], body: bytes) -> int:
        status = self.statuses.pop(0) if self.statuses else self.status
        self.deliveries.append(Delivery(headers, body, status))
        return status


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver for as long as the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = receiver.take({name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(status)
            if status in (301, 302, 307):
                self.send_header("Location", receiver.url)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(server.server_port)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
