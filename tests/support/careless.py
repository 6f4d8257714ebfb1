"""What user code may raise, give back and do, at its worst: for handlers in a module of their own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bunqueue import ActiveJob


class Careless(Exception):
    """The fields of an answer as attributes: a KeyError where there is none."""

    def __init__(self, text: str, **fields: Any) -> None:
        super().__init__(text)
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        return self.fields[name]


class Exits(Exception):
    """Looking at it ends the program."""

    @property
    def retry_after(self) -> float:
        raise SystemExit(3)

    response = headers = delay = retry_after


class Textless(Exception):
    """It has no text, and its class is not to be had."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise KeyError("class")

    @__class__.setter
    def __class__(self, value: type) -> None:
        raise KeyError("class")


class Untouchable(Exception):
    """Nothing can be kept with it, and nothing compared."""

    __hash__ = None  # type: ignore[assignment]

    def __setattr__(self, name: str, value: object) -> None:
        raise KeyError(name)

    def __eq__(self, other: object) -> bool:
        raise KeyError("eq")

    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise KeyError("traceback")

    @__traceback__.setter
    def __traceback__(self, value: object) -> None:
        raise KeyError("traceback")


class Own(BaseException):
    """Not an Exception, as those that end programs."""


class Unsendable:
    """Looking for what could be sent of it ends the program."""

    @property
    def __dataclass_fields__(self) -> Any:
        raise SystemExit(3)


RAISED: dict[str, Callable[[], BaseException]] = {
    "Careless": lambda: Careless("402 payment required", code=402),
    "Exits": lambda: Exits("too many requests"),
    "Textless": lambda: Textless("hidden"),
    "Untouchable": lambda: Untouchable("no"),
    "Own": lambda: Own("own"),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": lambda: StopIteration(1),
    "StopAsyncIteration": lambda: StopAsyncIteration(1),
    "ExceptionGroup": lambda: ExceptionGroup("several", [Careless("one"), Exits("two")]),
}
"""By the first word of what is reported."""


def misbehave(job: ActiveJob) -> Any:
    """As the data says."""
    if job.data == "fine":
        return "fine"
    if job.data == "unsendable":
        return Unsendable()
    raise RAISED[job.data]()


async def misbehave_async(job: ActiveJob) -> Any:
    return misbehave(job)


# -- in processes of their own


def fork(job: ActiveJob) -> str:
    """Start a helper with os.fork, which ends as the data says; give its pid."""
    child = os.fork()
    if child:
        return str(child)
    if job.data == "exit":
        sys.exit(0)
    if job.data == "raise":
        raise ValueError("in the copy")
    if job.data == "speak":
        job.log_soon("from the copy")
        job.log("from the copy")
    return "of the copy"


def name_of(job: ActiveJob) -> str:
    return f"job {job.id}"


def end_helper(job: ActiveJob) -> bool:
    """Whether `Process.terminate` ends a helper."""
    helper = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    helper.start()
    helper.terminate()
    helper.join(60)
    ended = not helper.is_alive()
    helper.kill()
    return ended


def leave_pool(job: ActiveJob) -> list[int]:
    """Use a pool, and leave it early."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1, -2])


def mark(job: ActiveJob) -> int:
    """Leave two lines in the file that the data names: a run beside another one is seen."""
    path = Path(job.data)
    with path.open("a") as file:
        file.write("begin\n")
    time.sleep(0.4)  # longer than the timeout of its job
    with path.open("a") as file:
        file.write("end\n")
    return pickle.HIGHEST_PROTOCOL
