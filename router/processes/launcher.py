"""How the router starts the server's other processes, and what it knows of each.

The fork server starts them if there is one. Without one (not on Linux, or when it has ended) each is started
anew and loads its program; the only difference is the time that this takes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from bunqueue.logs import get_logger

from . import fork_server

PYTHON = (sys.executable, "-P", "-m")  # followed by a module: a command that the fork server can run
ANSWER_S = 30.0  # for the fork server to start a process; it may still be loading
MAX_LINE = 1 << 20  # bytes of a line that a process may print

_log = get_logger("router")


class Process(Protocol):
    """The interface of a process, a part of that of `asyncio.subprocess.Process`."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""

    @property
    def stdin(self) -> asyncio.StreamWriter | None: ...

    @property
    def stdout(self) -> asyncio.StreamReader | None: ...

    async def wait(self) -> int: ...

    def send_signal(self, number: int, /) -> None: ...

    def kill(self) -> None: ...


class Forked:
    """A process that the fork server started."""

    def __init__(self, pid: int, stdin: asyncio.StreamWriter) -> None:
        self.pid, self.stdin = pid, stdin
        self.stdout: asyncio.StreamReader | None = None
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._pipes = [stdin]
        self._descriptor = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._reap)

    async def listen(self, sock: socket.socket) -> None:
        """Read its standard output, which is the other end of this socket."""
        self.stdout, writer = await asyncio.open_unix_connection(sock=sock, limit=MAX_LINE)
        self._pipes.append(writer)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set()

    async def wait(self) -> int:
        """Call it last: unread output is lost."""
        await self._ended.wait()
        for pipe in self._pipes:
            pipe.close()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int, /) -> None:
        if self.returncode is None:  # its id is not reused before it is reaped
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Launcher:
    """Starts processes."""

    def __init__(self, forks: fork_server.Forks | None = None) -> None:
        self._pid = 0
        self._orders: socket.socket | None = None
        if forks is not None:
            self._pid, self._orders = forks
        self._lock = asyncio.Lock()

    async def start(
        self, command: Sequence[str], *, talks: bool = False, files: Sequence[int] = ()
    ) -> Process:
        """Start a process in a session of its own, which a terminal's Ctrl-C does not reach: the router
        decides when it ends. ``talks``: its standard output is read. ``files``: further descriptors that it
        inherits, under the same numbers. OSError if it cannot be started."""
        if self._orders is not None and tuple(command[:-1]) == PYTHON:
            asking = asyncio.create_task(self._forked(command[-1], talks, files))
            try:
                if found := await asyncio.shield(asking):  # a cancelled request's answer must be read as well
                    return found
            except asyncio.CancelledError:
                asking.add_done_callback(_unwanted)
                raise
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE if talks else DEVNULL,
            pass_fds=files,
            start_new_session=True,
            limit=MAX_LINE,
        )

    async def _forked(self, module: str, talks: bool, files: Sequence[int]) -> Forked | None:
        """Start a process through the fork server; None if there is no fork server any more."""
        to_it, stdin = socket.socketpair()
        from_it, stdout = socket.socketpair()  # with one for both directions, unread data would reset it
        with stdin, stdout, from_it, to_it:
            order = fork_server.Order(module, [0, 1, *files])
            answer = await self._ask(order, [stdin.fileno(), stdout.fileno(), *files])
            if answer.startswith(fork_server.FAILED):
                raise OSError(answer.removeprefix(fork_server.FAILED).decode())
            if not answer:
                return None
            _, writer = await asyncio.open_unix_connection(sock=to_it.dup())
            process = Forked(int(answer), writer)
            if talks:
                await process.listen(from_it.dup())
            return process

    async def _ask(self, order: fork_server.Order, files: Sequence[int]) -> bytes:
        """The fork server's answer; empty if there is no fork server any more."""
        async with self._lock:
            if self._orders is None:
                return b""
            with suppress(TimeoutError, OSError):
                socket.send_fds(self._orders, [msgspec.json.encode(order)], files)
                async with asyncio.timeout(ANSWER_S):
                    loop = asyncio.get_running_loop()
                    if answer := await loop.sock_recv(self._orders, fork_server.MAX_ORDER):
                        return answer
            _log.warning("the fork server has ended: from now on each process loads its program")
            self.close()
            return b""

    def close(self) -> None:
        """End the fork server; the processes that it has started stay. Safe to call twice."""
        if self._orders is not None:
            self._orders.close()
            self._orders = None
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)


def _unwanted(asking: asyncio.Task[Forked | None]) -> None:
    """Kill a process whose start was cancelled meanwhile."""
    if not asking.cancelled() and asking.exception() is None and (found := asking.result()):
        found.kill()
