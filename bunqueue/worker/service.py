"""Workers that have a process to themselves: an event loop, and signals that stop it gracefully."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from bunqueue.worker.log import log_event
from bunqueue.worker.log_context import jobs_in_pools

SIGNALS = (signal.SIGTERM, signal.SIGINT)
AGAIN = 0.5  # seconds; a signal sooner after the first one counts as the same request: timeout(1) sends two


class Service(Protocol):
    """A worker, or several as one."""

    async def serve(self) -> BaseException | None:
        """Work until `stop_soon` is called, or until it cannot continue; returns why."""

    def stop_soon(self, *, hurry: bool = False) -> None:
        """Make `serve` end; with `hurry`, without any grace."""


def run_forever(*workers: Service) -> None:
    """Run workers until SIGTERM or SIGINT, or until one of them cannot continue.

    The first signal stops them gracefully: they take no more jobs, and have their `grace` to end running
    jobs. The second signal cancels what still runs, unless it comes right after the first. Raises what
    `Worker.run` raises.
    """
    if asyncio._get_running_loop() is not None:
        raise RuntimeError(
            "run_forever, and run() of an app, need a thread without an event loop, and here one runs; write "
            "`async with worker:` (or app) instead, or `await worker.run()`"
        )
    with jobs_in_pools(), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        problem = runner.run(_serve(workers))
    if problem is not None:
        raise problem


async def _serve(workers: tuple[Service, ...]) -> BaseException | None:
    loop = asyncio.get_running_loop()
    first: float | None = None
    over = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal first
        if first is None:
            first = loop.time()
            log_event(
                "signal", {}, "%s: no more jobs are taken; a second one ends those that run", number.name
            )
            stop()
        elif loop.time() - first > AGAIN:
            log_event("signal", {}, "%s again: jobs that run are ended", number.name)
            stop(hurry=True)

    def stop(*, hurry: bool = False) -> None:
        nonlocal over
        over = True
        for worker in workers:
            worker.stop_soon(hurry=hurry)

    async def serve(worker: Service) -> BaseException | None:
        if over:  # stopped before it began: `stop_soon` had no effect on it
            return None
        try:
            return await worker.serve()
        finally:
            stop()  # the others stop with the first

    with _signals(on_signal):
        problems = await asyncio.gather(*map(serve, workers), return_exceptions=True)
    return next((problem for problem in problems if problem is not None), None)


@contextmanager
def _signals(stop: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call `stop` for each signal. Only the main thread can do this; elsewhere nothing is done."""
    loop = asyncio.get_running_loop()
    installed = []
    try:
        for number in SIGNALS:
            try:
                loop.add_signal_handler(number, stop, number)
                installed.append(number)
            except (NotImplementedError, RuntimeError, ValueError):
                break
        yield
    finally:
        for number in installed:
            loop.remove_signal_handler(number)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The faster event loop, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
