"""Made by scripts/unasync.py from client/queue/workflow.py; do not edit."""

from __future__ import annotations

import uuid
from typing import Any, TypeVar

from bunqueue.client.connection.options import Duration, milliseconds
from bunqueue.client.models.workflows import Delivery, OneWorkflow, SignalSent, Step, WorkflowInfo
from bunqueue.client.options import checks
from bunqueue.client.options.job import encode_data
from bunqueue.client.blocking.queue.handle import JobHandle
from bunqueue.protocol.commands import Ok
from bunqueue.protocol.commands.workflows import (
    DropSignal,
    GetWorkflow,
    RetryWorkflow,
    SendSignal,
    UndoWorkflow,
)

R = TypeVar("R")

PAGE = 500  # steps read at once


class WorkflowHandle(JobHandle[R]):
    """A workflow: everything that a job has, and its steps, signals and undo.

    R is the type of its result.
    """

    __slots__ = ()

    def info(self) -> WorkflowInfo:
        """What it does and waits for, with its first steps; `history` has all of them. Raises JobNotFound."""
        return self._page(0, 100, 1024)

    def query(self) -> Any:
        """The value its code last set as `flow.state`; None if unset. Raises JobNotFound."""
        return (self._page(0, 1, 0)).value

    def history(self, *, max_result: int = 1 << 20) -> list[Step]:
        """All its recorded steps, in the order in which they were first recorded.

        Results of more than `max_result` bytes are left out. Raises JobNotFound.
        """
        steps: list[Step] = []
        after: int | None = 0
        while after is not None:
            page = self._page(after, PAGE, max_result)
            steps += page.steps
            after = page.next
        return steps

    def _page(self, after: int, limit: int, max_result: int) -> WorkflowInfo:
        command = GetWorkflow(id=self.id, after=after, limit=limit, max_result=max_result)
        return (self._ask(checks.checked(command), OneWorkflow)).data

    def signal(
        self, name: str, data: object = None, *, ttl: Duration | None = None, signal_id: str | None = None
    ) -> bool:
        """Send it a signal: the oldest wait for this name takes it. True: a wait took it. False: nothing was
        waiting, and the signal is kept for the next wait; for `ttl`, if given. `send_signal` returns more.

        Sending it again with the same `signal_id` counts once. Raises CommandFailed with the code
        SIGNAL_UNFIT if the data does not fit what the workflow waits for; JobNotFound; WrongState if the
        workflow has ended, or the job is not a workflow.
        """
        return (self.send_signal(name, data, ttl=ttl, signal_id=signal_id)).delivered

    def send_signal(
        self, name: str, data: object = None, *, ttl: Duration | None = None, signal_id: str | None = None
    ) -> Delivery:
        """Like `signal`: returns whether a wait took it, and if not, what the workflow waits for instead."""
        command = SendSignal(
            id=self.id,
            name=name,
            data=encode_data(data, f"the data of signal {name!r}"),
            ttl=None if ttl is None else milliseconds(ttl, "ttl"),
            signal_id=signal_id or str(uuid.uuid4()),  # makes it safe for the client to repeat
        )
        return (self._ask(checks.checked(command), SignalSent)).data

    def drop_signal(self, number: int) -> None:
        """Remove a signal that no wait has taken, or one that was rejected as unfit: `info().signals` has the
        numbers. Raises NotFound.
        """
        self._ask(checks.checked(DropSignal(id=self.id, number=number)), Ok)

    def retry_from(self, step: str) -> None:
        """Run it again from a step: that step and everything recorded after it is removed.

        Raises NotFound if it has not recorded that step, WrongState while it is active.
        """
        self._ask(checks.checked(RetryWorkflow(id=self.id, step=step)), Ok)

    def undo(self) -> None:
        """Undo its finished steps, last first, after it has completed or failed. `cancel` also does this.

        Raises WrongState if it has not ended, or nothing can be undone.
        """
        self._ask(UndoWorkflow(id=self.id, action="start"), Ok)

    def resume_undo(self) -> None:
        """Retry an undo that failed. Raises WrongState if the workflow is not stuck."""
        self._ask(UndoWorkflow(id=self.id, action="retry"), Ok)

    def skip_undo(self, step: str) -> None:
        """Continue a stuck undo without undoing this step. Raises WrongState or NotFound."""
        self._ask(checks.checked(UndoWorkflow(id=self.id, action="skip", step=step)), Ok)

    def edit_undo(self, step: str, value: object) -> None:
        """Continue a stuck undo: undo this step with `value` in place of its result. Raises WrongState or
        NotFound.
        """
        data = encode_data(value, f"the value for step {step!r}")
        command = UndoWorkflow(id=self.id, action="edit", step=step, data=data)
        self._ask(checks.checked(command), Ok)
