"""Reports waits of a workflow to middleware: each once, from the run that continues with it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from bunqueue.client.interrupts import is_ctrl_c
from bunqueue.client.models.workflows import Step
from bunqueue.model.workflow import CANCELLED, CHILD
from bunqueue.protocol.commands.workflows import ChildJob, StepAnswer

if TYPE_CHECKING:
    from bunqueue.workflow.run import Run

logger = logging.getLogger("bunqueue.worker")


class Waits:
    """The waits of one run. Without observing middleware nothing is kept."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._observers = run.job.channel.observers
        self._begun: dict[str, float] = {}  # when new waits began, epoch ms by the server's clock

    def begins(self, name: str, child: ChildJob | None) -> ChildJob | None:
        """A wait that no run has recorded; returns the child to start."""
        if not self._observers:
            return child
        self._begun[name] = self._run.server_ms()
        if child is None:
            return None
        headers = dict(child.input.headers or {})
        for each in self._observers:
            each.starting(self._run.job, headers)
        return msgspec.structs.replace(
            child, input=msgspec.structs.replace(child.input, headers=headers or None)
        )

    def found(self, step: Step) -> None:
        """A wait that had ended when this run began."""
        if self._observers and not self._was_seen(step):
            self._notify(step)

    def over(self, name: str, kind: str, known: Step | None, answer: StepAnswer, **fields: Any) -> None:
        """A wait that has ended in this run."""
        if not self._observers:
            return
        now = self._run.server_ms()
        begun = known.started_at_ms if known is not None else self._begun.pop(name, now)
        child, queue = (None, None) if known is None else (known.child, known.child_queue)
        self._notify(
            Step(
                number=answer.number if known is None else known.number,
                name=name,
                kind=kind,
                status=answer.status,
                started_at_ms=begun,
                ended_at_ms=max(now, begun),
                signal=fields.get("signal"),
                key=fields.get("key"),
                child=child if answer.child is UNSET else answer.child,
                child_queue=fields.get("queue", queue) if kind == CHILD else None,
                error=None if answer.error is UNSET else answer.error,
            )
        )

    def lost(self, name: str, kind: str, known: Step | None, **fields: Any) -> None:
        """A wait whose branch was cancelled."""
        self.over(name, kind, known, StepAnswer(status=CANCELLED), **fields)

    def _was_seen(self, step: Step) -> bool:
        """Whether an earlier run continued with it: the last run was not suspended to wait for it."""
        spans = self._run.job.workflow.waited
        return not any(
            first <= step.number <= last for first, last in zip(spans[::2], spans[1::2], strict=True)
        )

    def _notify(self, step: Step) -> None:
        for each in self._observers:
            try:
                each.waited(self._run.job, step)
            except BaseException as error:
                if is_ctrl_c(error):
                    raise
                logger.exception("middleware %r failed when it was notified of step %r", each, step.name)
