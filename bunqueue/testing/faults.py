"""What a test may have go wrong: replies and commands that are lost, refusals, workers that die."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf

from msgspec import Struct

from bunqueue.client.connection.requests import spec_of
from bunqueue.errors import OptionError
from bunqueue.protocol.commands import COMMANDS

WORDS = {
    "add": frozenset({"PUSH", "PUSHB", "PUSHF"}),
    "pull": frozenset({"PULL", "PULLB"}),
    "ack": frozenset({"ACK", "ACKB"}),
    "fail": frozenset({"FAIL"}),
    "renew": frozenset({"JobHeartbeat", "JobHeartbeatB", "ExtendLock", "ExtendLocks"}),
}
"""What one would call a command; other ones have their name on the wire."""


class Kind(Enum):
    """What happens."""

    COMMAND_LOST = "the command was lost"
    ANSWER_LOST = "its answer was lost"
    REFUSED = "refused"
    CRASH = "the worker died"


@dataclass(slots=True)
class Fault:
    """Meets every command of `names`, or the jobs of `queue`, that is the `first`th from now on, and as many
    after it until `left` is used up."""

    kind: Kind
    names: frozenset[str]
    first: int
    left: float
    queue: str | None = None
    text: str = ""
    code: str | None = None
    renewed: bool = False

    def meets(self, name: str, queue: str | None) -> bool:
        """Count a command; whether it is hit."""
        if not self.left or name not in self.names or (self.queue is not None and queue != self.queue):
            return False
        if self.first > 1:
            self.first -= 1
            return False
        self.left -= 1
        return True


class Faults:
    """What is to go wrong in a sandbox.

    `nth` counts from now on, `times` is how often in a row, None: always.
    `what` is "add", "pull", "ack", "fail" or "renew", or a command's name on the wire, such as "GetState".
    Where a connection is lost, so is all that its end means: jobs that were pulled over it and whose lock was
    never renewed go back to their queues. Clients repeat what they may repeat, as they do with a server.
    """

    def __init__(self) -> None:
        self._planned: list[Fault] = []

    def lose_answer(self, what: str, *, nth: int = 1, times: int | None = 1) -> None:
        """The command is carried out, then the connection is lost before the answer comes."""
        self._plan(Kind.ANSWER_LOST, what, nth, times)

    def lose_command(self, what: str, *, nth: int = 1, times: int | None = 1) -> None:
        """The connection is lost before the command arrives: nothing is carried out."""
        self._plan(Kind.COMMAND_LOST, what, nth, times)

    def refuse(
        self, what: str, text: str, *, code: str | None = None, nth: int = 1, times: int | None = 1
    ) -> None:
        """The server refuses the command with this text, and changes nothing.

        ``code`` is one of docs/errors.md; without one the text decides which exception it becomes.
        """
        self._plan(Kind.REFUSED, what, nth, times, text=text, code=code)

    def crash(
        self, queue: str | None = None, *, nth: int = 1, times: int | None = 1, renewed: bool = False
    ) -> None:
        """The worker dies as it is about to run a job, of any queue or of this one, in `drain`.

        The job goes back at once; with `renewed`, when its lock has run out, and an attempt is used up: that
        is what happens to jobs that have run for a while.
        """
        _check(nth, times)
        self._planned.append(Fault(Kind.CRASH, frozenset({"run"}), nth, times or inf, queue, renewed=renewed))

    def clear(self) -> None:
        """Nothing goes wrong from now on."""
        self._planned.clear()

    def meeting(self, command: Struct) -> Fault | None:
        """Count a command that is to be sent; what happens to it."""
        name = spec_of(type(command)).name if self._planned else ""
        return self._first_of(name, None)

    def crashing(self, queue: str) -> Fault | None:
        """Count a job that is to be run; what happens to its worker."""
        return self._first_of("run", queue)

    def _first_of(self, name: str, queue: str | None) -> Fault | None:
        hits = [fault for fault in self._planned if fault.meets(name, queue)]  # all of them count
        self._planned = [fault for fault in self._planned if fault.left]
        return hits[0] if hits else None

    def _plan(
        self, kind: Kind, what: str, nth: int, times: int | None, text: str = "", code: str | None = None
    ) -> None:
        _check(nth, times)
        names = WORDS.get(what) or frozenset({what})
        if not names <= COMMANDS.keys():
            raise OptionError(f"what: {what!r} is no command; give one of {', '.join(WORDS)}, or a wire name")
        self._planned.append(Fault(kind, names, nth, times or inf, text=text, code=code))


def _check(nth: int, times: int | None) -> None:
    for name, value in (("nth", nth), ("times", 1 if times is None else times)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise OptionError(f"{name}: {value!r} is not allowed; give a whole number from 1 on")
