"""How a handler is run, and what it gets: the job in its hands."""

from __future__ import annotations

import asyncio
import inspect
import threading
import traceback
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from msgspec import Raw, Struct
from msgspec.msgpack import Decoder

from bunqueue.client.caller import AsyncCaller
from bunqueue.client.jobs import Job
from bunqueue.client.threads import Threads
from bunqueue.protocol.commands import Ok, query

MAX_ERROR = 2_000  # characters of an error's text; enough for a person, small enough for every list
MAX_STACK = 8_000  # characters of a traceback, its end: that is where the error is

Handler = Callable[["ActiveJob"], Any]
"""A coroutine function, which runs in the event loop, or a plain one, which runs in a thread."""


class _Pulled(Struct, rename="camel", gc=False):
    """What a handler needs of a pulled job at once; the rest is decoded when it is asked for."""

    id: str
    queue: str
    name: str = "default"
    data: Raw = Raw(b"\xc0")
    attempts: int = 0
    max_attempts: int = 3
    remove_on_complete: bool = False
    remove_on_fail: bool = False


_decode_pulled = Decoder(_Pulled).decode
_decode_data = Decoder().decode
_decode_job = Decoder(Job).decode


class ActiveJob:
    """The job that a handler works on.

    `attempts` counts the failures before this run, `max_attempts` is how often it may run in all.
    """

    __slots__ = (
        "_line",
        "_raw",
        "attempts",
        "data",
        "id",
        "max_attempts",
        "name",
        "queue",
        "remove_on_complete",
        "remove_on_fail",
        "token",
    )

    def __init__(self, raw: Raw, token: str, line: ProgressLine) -> None:
        """Raises MsgspecError when `raw` is no job. Its `data` is decoded by `open`."""
        pulled = _decode_pulled(raw)
        self.id = pulled.id
        self.queue = pulled.queue
        self.name = pulled.name
        self.data: Any = pulled.data
        self.attempts = pulled.attempts
        self.max_attempts = pulled.max_attempts
        self.remove_on_complete = pulled.remove_on_complete
        self.remove_on_fail = pulled.remove_on_fail
        self.token = token
        """Proves that this worker holds the job."""
        self._raw = raw
        self._line = line

    def __repr__(self) -> str:
        return (
            f"ActiveJob(queue={self.queue!r}, name={self.name!r}, id={self.id!r}, attempts={self.attempts})"
        )

    def open(self) -> None:
        """Decode the data. Raises MsgspecError, or what a wrong payload makes Python raise."""
        self.data = _decode_data(self.data)

    def job(self) -> Job:
        """Everything about the job, as it was when it was pulled."""
        return _decode_job(self._raw)

    def progress(self, value: float, message: str | None = None) -> Awaitable[None]:
        """Tell how far the job is, 0 to 100; without a message the last one stays.

        Await it in a coroutine; in a plain function just call it, it returns when the server has it.
        Raises BunqueueError: JobNotFound or CommandFailed when the job is not active any more.
        """
        return self._line.report(self.id, value, message)


class _Done:
    """Something to await for those who need not."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


_DONE = _Done()


class ProgressLine:
    """Takes progress from handlers in the loop and in threads to the server."""

    def __init__(self, caller: AsyncCaller) -> None:
        self._caller = caller
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def report(self, job_id: str, value: float, message: str | None) -> Awaitable[None]:
        sending = self._send(query.Progress(id=job_id, progress=value, message=message))
        if threading.get_ident() == self._thread:
            return sending
        try:
            waiting = asyncio.run_coroutine_threadsafe(sending, self._loop)
        except RuntimeError:  # the worker is gone, and left this thread behind
            sending.close()
            raise
        waiting.result()
        return _DONE

    async def _send(self, command: query.Progress) -> None:
        await self._caller.call(command, Ok)


class Runner:
    """Calls the handler where it belongs."""

    def __init__(self, handler: Handler, threads: int) -> None:
        self.is_async = _is_async(handler)
        self._handler = handler
        self._threads = None if self.is_async else Threads(threads)

    async def run(self, job: ActiveJob) -> Any:
        """What the handler gives back. Raises whatever it raises."""
        if self._threads is None:
            return await self._handler(job)
        succeeded, value = await self._threads.run(self._handler, job)
        if not succeeded:
            raise value
        return await value if inspect.isawaitable(value) else value

    def stop(self) -> None:
        """No more jobs will come. Threads that still work are not waited for."""
        if self._threads is not None:
            self._threads.stop()


def _is_async(handler: Handler) -> bool:
    if inspect.iscoroutinefunction(handler):  # sees through functools.partial
        return True
    return inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004  # an object's method


def error_text(error: BaseException) -> str:
    """`TypeError: message`, on one or more lines, bounded."""
    try:
        message = str(error)
    except Exception as problem:  # a broken __str__ must not cost the report of the failure
        message = f"(its text cannot be had: {type(problem).__name__})"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text if len(text) <= MAX_ERROR else text[: MAX_ERROR - 3] + "..."


def error_stack(error: BaseException) -> list[str]:
    """The lines of the traceback, without the frames of this package, bounded from the end."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__package__") == __package__:
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, trace))
    except Exception:  # formatting runs foreign code: __str__, __repr__, source loaders
        return []
    return text[-MAX_STACK:].splitlines()
