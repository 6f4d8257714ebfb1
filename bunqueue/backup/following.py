"""The process of a standby that follows what a primary ships (``--follow``).

It reads a `StandbyStart` and then `StandbyOrder` from its standard input, and writes a `Following` each
second and after each order. It ends when its input does.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from bunqueue.logs import get_logger
from bunqueue.server.host.process_arguments import name_process
from bunqueue.server.links.pipe_messages import Following, StandbyOrder, StandbyStart

from .follower import Follower, Resharded
from .process import FAILURES, say, set_up
from .repository import Repository
from .sealing import key_of
from .targets import target_of

EACH_S = 1.0
AGAIN_S = 15.0  # the longest pause after a failure; it is doubled each time

_log = get_logger("standby")


def main() -> int:
    """Run it; returns the exit status."""
    name_process("bunqueue following")
    lines = Lines()
    try:
        start = msgspec.json.decode(lines.wait(None) or b"", type=StandbyStart)
    except msgspec.DecodeError:
        return 1  # the router was killed before it had sent everything
    settings = set_up(start.settings)

    def connect() -> Repository:
        key = key_of(settings.backup_key, settings.backup_key_command)
        return Repository(target_of(settings.follow), key)

    with suppress(BrokenPipeError):  # the router is gone
        run(Follower(Path(settings.data_dir), connect, settings.follow), lines)
    return 0


class Lines:
    """The lines of the standard input, as they come."""

    def __init__(self) -> None:
        self._rest = b""
        self.ended = False

    def wait(self, seconds: float | None) -> bytes | None:
        """The next line; None if no line comes within so many seconds, or the input has ended."""
        while b"\n" not in self._rest:
            readable, _, _ = select.select([sys.stdin], [], [], seconds)
            part = os.read(sys.stdin.fileno(), 1 << 16) if readable else b""
            self._rest += part
            if not part:
                self.ended = bool(readable)
                return None
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def run(follower: Follower, lines: Lines) -> None:
    """Follow until the input ends."""
    error, pause, anew, order, failed = "", 0.0, False, 0, ""
    while not lines.ended:
        said = error
        try:
            follower.step()
            error, pause = "", 0.0
        except Resharded as problem:
            error, anew = str(problem), True
        except FAILURES as problem:
            error, pause = str(problem), min(max(EACH_S, 2 * pause), AGAIN_S)
        if error and error != said:
            _log.warning("the primary cannot be followed; tried again", error=error)
        if said and not error:
            _log.info("the primary is followed again")
        say(_report(follower, error, order, failed, anew))
        until = time.monotonic() + (pause or EACH_S)
        while (line := lines.wait(max(0.0, until - time.monotonic()))) is not None:
            wanted = msgspec.json.decode(line, type=StandbyOrder)
            order, failed = wanted.number, _carried_out(follower, wanted)
            say(_report(follower, error, order, failed, anew))


def _carried_out(follower: Follower, wanted: StandbyOrder) -> str:
    """Carry out an order; returns why it failed, or ""."""
    orders: dict[str, Callable[[], None]] = {
        "apply": follower.apply,
        "claim": follower.claim,
        "finish": lambda: follower.finish(force=wanted.force),
    }
    try:
        orders[wanted.what]()
    except FAILURES as problem:
        return str(problem) or type(problem).__name__
    return ""


def _report(follower: Follower, error: str, order: int, failed: str, anew: bool) -> Following:
    primary, state = follower.primary, follower.state
    return Following(
        until=follower.until,
        shown=follower.shown,
        behind_s=round(follower.behind_s, 3),
        silent_s=round(follower.silent_s, 3),
        stopped=primary.stopped,
        primary=primary.address,
        term=primary.term,
        shards=state.shards if state is not None and follower.is_whole else 0,
        waiting=follower.has_new,
        claimed=follower.is_claimed,
        anew=anew,
        error=error,
        order=order,
        failed=failed,
    )


if __name__ == "__main__":
    sys.exit(main())
