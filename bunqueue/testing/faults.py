"""Fault injection for tests: lost commands and replies, refusals, and workers that die."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from math import inf

from msgspec import Struct

from bunqueue.client.connection.options import unfit
from bunqueue.client.connection.requests import spec_of
from bunqueue.protocol.commands import COMMANDS
from bunqueue.protocol.commands.workflows import RecordSteps
from bunqueue.workflow.run_log import base_of

WORDS = {
    "add": frozenset({"PUSH", "PUSHB", "PUSHF"}),
    "pull": frozenset({"PULL", "PULLB"}),
    "ack": frozenset({"ACK", "ACKB"}),
    "fail": frozenset({"FAIL", "FAILB"}),
    "renew": frozenset({"JobHeartbeat", "JobHeartbeatB", "ExtendLock", "ExtendLocks"}),
}
"""Short names of commands. All others go by their wire name."""


REPORTS = frozenset({"RecordSteps", "SuspendJob", "ContinueAsNew", "ACK", "ACKB", "FAIL", "FAILB"})
"""The commands with which a worker reports about its jobs."""


class Kind(Enum):
    """The kind of a fault."""

    COMMAND_LOST = "the command was lost"
    ANSWER_LOST = "its answer was lost"
    REFUSED = "refused"
    CRASH = "the worker died"
    DEATH = "the worker died as it reported"


@dataclass(slots=True)
class Fault:
    """A planned fault. It hits the `first`th command of `names`, counted from now (or the `first`th job of
    `queue`), and those after it, `left` in all."""

    kind: Kind
    names: frozenset[str]
    first: int
    left: float
    queue: str | None = None
    text: str = ""
    code: str | None = None
    renewed: bool = False
    step: str | None = None
    stored: bool = False

    def meets(self, name: str, queue: str | None) -> bool:
        """Count a command, and return whether the fault hits it."""
        if not self.left or name not in self.names or (self.queue is not None and queue != self.queue):
            return False
        if self.first > 1:
            self.first -= 1
            return False
        self.left -= 1
        return True


class Faults:
    """The planned faults of a sandbox.

    `nth` counts from now. `times` is the number of consecutive hits; None: every one. `what` is "add",
    "pull", "ack", "fail" or "renew", or the wire name of a command, such as "GetState". A lost connection has
    its usual consequences: jobs that were pulled over it return to their queues, unless their lock was
    renewed. Clients repeat commands that are safe to repeat, as they do with a server.
    """

    def __init__(self) -> None:
        self.reports = 0
        """The number of commands about jobs that workers have sent in drains."""
        self._planned: list[Fault] = []

    def lose_answer(self, what: str, *, nth: int = 1, times: int | None = 1) -> None:
        """Carry out the command, but lose the connection before the answer arrives."""
        self._plan(Kind.ANSWER_LOST, what, nth, times)

    def lose_command(self, what: str, *, nth: int = 1, times: int | None = 1) -> None:
        """Lose the connection before the command arrives, so nothing is carried out."""
        self._plan(Kind.COMMAND_LOST, what, nth, times)

    def refuse(
        self, what: str, text: str, *, code: str | None = None, nth: int = 1, times: int | None = 1
    ) -> None:
        """Have the server refuse the command with this text, and change nothing.

        ``code`` is one from docs/errors.md; without a code, the text determines the exception.
        """
        self._plan(Kind.REFUSED, what, nth, times, text=text, code=code)

    def crash(
        self, queue: str | None = None, *, nth: int = 1, times: int | None = 1, renewed: bool = False
    ) -> None:
        """Kill the worker just before it runs a job in `drain`: a job of any queue, or of `queue`.

        The job returns to its queue at once. With `renewed` it returns when its lock has expired, which uses
        up an attempt, as for jobs that have run for a while.
        """
        _check(nth, times)
        self._planned.append(Fault(Kind.CRASH, frozenset({"run"}), nth, times or inf, queue, renewed=renewed))

    def crash_in_step(self, step: str, *, stored: bool = False, nth: int = 1, times: int | None = 1) -> None:
        """Kill the worker after it has run a step of a workflow in `drain`: before the result is stored, or,
        with `stored`, immediately after. The job returns to its queue."""
        _check(nth, times)
        names = frozenset({"RecordSteps"})
        self._planned.append(Fault(Kind.DEATH, names, nth, times or inf, step=step, stored=stored))

    def crash_in_report(self, *, stored: bool = False, nth: int = 1, times: int | None = 1) -> None:
        """Kill the worker in `drain` as it reports about a job: that a step is done, that the workflow waits,
        or that the job has ended. With `stored` it dies immediately after the report is stored."""
        _check(nth, times)
        self._planned.append(Fault(Kind.DEATH, REPORTS, nth, times or inf, stored=stored))

    def clear(self) -> None:
        """Remove all planned faults."""
        self._planned.clear()

    def meeting(self, command: Struct) -> Fault | None:
        """Count a command that is about to be sent, and return the fault that hits it."""
        name = spec_of(type(command)).name if self._planned else ""
        return self._first_of(name, None)

    def dying(self, command: Struct) -> Fault | None:
        """Count a report of a worker, and return the fault that hits the worker."""
        self.reports += 1
        return self._first_of(spec_of(type(command)).name, None, Kind.DEATH, _steps_of(command))

    def crashing(self, queue: str) -> Fault | None:
        """Count a job that is about to run, and return the fault that hits its worker."""
        return self._first_of("run", queue)

    def _first_of(
        self, name: str, queue: str | None, kind: Kind | None = None, steps: Collection[str] = ()
    ) -> Fault | None:
        """The first fault of one kind. Without ``kind``, any fault except those that kill workers as they
        report."""
        found = [
            fault
            for fault in self._planned
            if (fault.kind is Kind.DEATH) == (kind is Kind.DEATH)
            and (fault.step is None or fault.step in steps)
        ]
        hits = [fault for fault in found if fault.meets(name, queue)]  # each of them must count the command
        self._planned = [fault for fault in self._planned if fault.left]
        return hits[0] if hits else None

    def _plan(
        self, kind: Kind, what: str, nth: int, times: int | None, text: str = "", code: str | None = None
    ) -> None:
        _check(nth, times)
        names = WORDS.get(what) or frozenset({what})
        if not names <= COMMANDS.keys():
            raise unfit("what", f"{what!r} is no command; give one of {', '.join(WORDS)}, or a wire name")
        self._planned.append(Fault(kind, names, nth, times or inf, text=text, code=code))


def _steps_of(command: Struct) -> set[str]:
    """The steps that a command records as finished, without their numbers."""
    if not isinstance(command, RecordSteps):
        return set()
    return {base_of(step.name) for step in command.steps if step.status != "running"}


def _check(nth: int, times: int | None) -> None:
    for name, value in (("nth", nth), ("times", 1 if times is None else times)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise unfit(name, f"{value!r} is not allowed; give a whole number from 1 on")
