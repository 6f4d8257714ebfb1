"""A server that says exactly what a test wants it to say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack

Command = dict[str, Any]
Answer = Callable[["Peer", Command], Awaitable[None]]


class Peer:
    """One client's connection, seen from the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def reply(self, command: Command, **fields: Any) -> None:
        payload = msgpack.packb({"ok": True, "reqId": command["reqId"], **fields})
        self.writer.write(len(payload).to_bytes(4, "big") + payload)

    def refuse(self, command: Command, error: str) -> None:
        self.reply(command, ok=False, error=error)

    def cut(self) -> None:
        self.writer.transport.abort()


class FakeServer:
    """Answers Hello and Ping by itself, everything else through `answer`; remembers what it was told."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.peers: list[Peer] = []
        self.deaf = False  # reads, and says nothing at all
        self.capabilities = ["pipelining"]
        self.answer: Answer = self._echo
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def names(self) -> list[str]:
        return [command["cmd"] for command in self.commands]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for peer in self.peers:
                peer.cut()
            await self._server.wait_closed()
            await asyncio.gather(*self._tasks)
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        peer = Peer(reader, writer)
        self.peers.append(peer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                command = msgpack.unpackb(await reader.readexactly(size))
                self.commands.append(command)
                if not self.deaf:
                    await self._handle(peer, command)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _handle(self, peer: Peer, command: Command) -> None:
        if command["cmd"] == "Hello":
            peer.reply(command, protocolVersion=2, capabilities=self.capabilities, server="fake", version="0")
        elif command["cmd"] == "Ping":
            peer.reply(command, data={"pong": True, "time": 0})
        else:
            await self.answer(peer, command)

    async def _echo(self, peer: Peer, command: Command) -> None:
        peer.reply(command, id=command.get("id", "job-1"), state="waiting", count=7)
