"""Work in a process of its own that is killed at a chosen step: a call or a return in some of our modules."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

from .server import ROOT


def steps_of(work: Callable[[], object], rooms: tuple[str, ...]) -> int:
    """How many steps the work has when nothing interrupts it; it is done then."""
    reader, writer = os.pipe()
    _run(work, rooms, None, writer)
    with open(reader) as pipe:
        return int(pipe.read())


def killed_at(step: int, work: Callable[[], object], rooms: tuple[str, ...]) -> bool:
    """Do the work up to a step, and SIGKILL it there; False if it had ended before.

    ``rooms``: folders or files of the tree whose calls and returns count, such as ``bunqueue/store``."""
    return _run(work, rooms, step, None) == -signal.SIGKILL


def _run(work: Callable[[], object], rooms: tuple[str, ...], step: int | None, writer: int | None) -> int:
    pid = os.fork()
    if not pid:
        _be_killed(work, tuple(str(ROOT / room) for room in rooms), step, writer)
    if writer is not None:
        os.close(writer)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), f"the work failed with status {code}"
    return code


def _be_killed(
    work: Callable[[], object], rooms: tuple[str, ...], step: int | None, writer: int | None
) -> None:
    done = 0

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal done
        if not frame.f_code.co_filename.startswith(rooms):
            return
        done += 1
        if done == step:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        sys.setprofile(profile)
        work()
        sys.setprofile(None)
        if writer is not None:
            os.write(writer, str(done).encode())
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
