"""The processes of the demonstration: its own server and its workers, started and cleanly stopped."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import sys
from asyncio import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

SHARDS = 2
WORKERS = min(4, max(3, os.cpu_count() or 1))
START_SECONDS = 20.0  # until the line that reports the start; usually less than one
STOP_SECONDS = 15.0  # after SIGTERM; running jobs finish within a moment
SERVER_READY = re.compile(r"bunqueue ready tcp=(\S+):(\d+) ")
WORKER_READY = re.compile(r"ready$")


class DemoError(Exception):
    """The demonstration cannot continue; the text gives the reason in one line."""


class Member:
    """One started process. If it fails, its standard error and that of its children are quoted."""

    def __init__(self, name: str, process: subprocess.Process) -> None:
        self.name = name
        self.process = process
        self._last_words = ""
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, name: str, command: Sequence[str]) -> Member:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            process_group=0,  # only we receive Ctrl-C: we stop the workers first, then the server
        )
        return cls(name, process)

    async def says(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """The first line on standard output that matches. DemoError if it does not come."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                async for line in self.process.stdout:
                    if found := pattern.match(line.decode()):
                        return found
                await self._end()
        except TimeoutError:
            raise DemoError(f"{self.name} was not ready within {START_SECONDS:.0f} s") from None
        raise self._ended()

    def check(self) -> None:
        """Raise DemoError if it has ended."""
        if self.process.returncode is not None:
            raise self._ended()

    async def stop(self) -> None:
        """Send SIGTERM; raise DemoError unless it then exits, with all its children and status 0."""
        self.check()
        self.process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._end()
        except TimeoutError:
            raise DemoError(
                f"{self.name}: not all has ended within {STOP_SECONDS:.0f} s of SIGTERM"
            ) from None
        if self.process.returncode != 0:
            raise self._ended()

    async def gone(self) -> None:
        """Never leave it running, whatever happened. A server's shards exit after it on their own."""
        if self.process.returncode is None:
            self.process.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._end()
        self._listening.cancel()

    async def _end(self) -> None:
        await self.process.wait()
        await asyncio.shield(self._listening)

    async def _listen(self) -> None:
        """Read until no process is left that could write: children keep standard error open."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self._last_words = line.decode(errors="replace").strip() or self._last_words

    def _ended(self) -> DemoError:
        words = f": {self._last_words}" if self._last_words else ""
        return DemoError(f"{self.name} ended with status {self.process.returncode}{words}")


def _environment() -> dict[str, str]:
    """Our environment, without settings for another server."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("BUNQUEUE_") and name != "AUTH_TOKENS"
    }


def _bunqueue() -> list[str]:
    """The command `bunqueue` that belongs to this Python."""
    script = Path(sys.executable).with_name("bunqueue")
    if script.exists():
        return [str(script)]
    if importlib.util.find_spec("bunqueue.cli.__main__") is not None:
        return [sys.executable, "-m", "bunqueue.cli"]
    raise DemoError(f"there is no command {script}; make install puts it there")


@asynccontextmanager
async def _kept(name: str, command: Sequence[str]) -> AsyncIterator[Member]:
    """A process that runs as long as the block; stopped cleanly even if the block fails."""
    member = await Member.start(name, command)
    try:
        try:
            yield member
        except BaseException:
            with suppress(DemoError):  # the block's own error says more
                await member.stop()
            raise
        await member.stop()
    finally:
        await member.gone()


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[tuple[str, int, Member]]:
    """A server with its data below `folder`: yields its host, its port and its main process."""
    options = {
        "host": "127.0.0.1",
        "tcp-port": 0,
        "http-port": 0,
        "shards": SHARDS,
        "data-dir": folder / "data",
    }
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    async with _kept("server", [*_bunqueue(), "start", *flags]) as member:
        ready = await member.says(SERVER_READY)
        yield ready[1], int(ready[2]), member


@asynccontextmanager
async def workers(host: str, port: int) -> AsyncIterator[list[Member]]:
    """Worker processes of a server, once they are ready to take jobs."""
    command = [sys.executable, str(Path(__file__).with_name("demo_work.py")), host, str(port)]
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(_kept(f"worker-{number}", command)) for number in range(WORKERS)
        ]
        for member in members:
            await member.says(WORKER_READY)
        yield members
