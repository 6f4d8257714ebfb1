"""Stands between client and server, and does to lines what networks do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing throws away what is unsent, and resets


class Proxy:
    """Forwards to a port of this machine; can cut the lines, or swallow everything without a word."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lines: list[_Line] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.silent = False
        """Whether all lines are, new ones too."""
        self.accepted = 0
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await self._server.wait_closed()
        for task in self._tasks:  # of lines that were hung up, and whose ends have not closed yet
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """End all connections, now."""
        lines, self._lines = self._lines, []
        for line in lines:
            line.cut()

    def reset(self) -> None:
        """Have all connections end as a firewall ends them that has forgotten them: both sides are reset."""
        for line in self._lines:
            for writer in line.writers:
                sock = writer.transport.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.cut()

    def hang_up(self) -> None:
        """End all connections as a load balancer does: each side sees the other one close it in order."""
        lines, self._lines = self._lines, []
        for line in lines:
            line.hang_up()

    def freeze(self) -> int:
        """Have all connections go half-open: nothing comes through any more, and nobody is told. How many
        these are; new ones work."""
        for line in self._lines:
            line.silent = True
        return len(self._lines)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.accepted += 1
        line = _Line(self, writer)
        self._lines.append(line)
        try:
            upstream, downstream = await asyncio.open_connection("127.0.0.1", self._target)
            line.writers.append(downstream)
            if line.hung_up:  # while this connected
                line.hang_up()
            await asyncio.gather(line.copy(reader, downstream), line.copy(upstream, writer))
        except OSError:
            writer.close()
        for each in line.writers:
            each.close()
        if line in self._lines:
            self._lines.remove(line)
        self._tasks.discard(task)


class _Line:
    def __init__(self, proxy: Proxy, writer: asyncio.StreamWriter) -> None:
        self.writers = [writer]
        self.silent = self.hung_up = False
        self._proxy = proxy

    def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()

    def hang_up(self) -> None:
        self.hung_up = self.silent = True  # what still comes is swallowed
        for writer in self.writers:
            with contextlib.suppress(OSError, RuntimeError):
                writer.write_eof()

    async def copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not (self.silent or self._proxy.silent):
                    writer.write(data)
        if not self.silent:
            writer.close()
