"""``bunqueue workflow``: starts workflows, shows their steps, signals them, retries and undoes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import UNSET

from bunqueue.server.settings import SettingsError

from ..framework import completing
from ..framework.session import Session
from ..framework.shared import noun, verb
from ..framework.values import SPAN, Yes, argument, data, option, span
from ..output.output import Column, Kind, plain
from ..output.progress import confirm
from .job.find import Limit, Where, searched, with_filter
from .job.one import Grace, Reason
from .job_options import given, with_job_options

if TYPE_CHECKING:
    from bunqueue.client.models.workflows import KeptSignal, Step

app = noun("Workflows: start, list and show them; signal, cancel, retry or undo one.")

WORKFLOWS = (
    Column("id", Kind.ID),
    Column("queue"),
    Column("name"),
    Column("state", Kind.STATE),
    Column("createdAt", Kind.TIME, "started"),
    Column("completedAt", Kind.TIME, "ended"),
    Column("failedReason", Kind.TEXT, "error"),
)
WORKFLOW = (
    Column("id", Kind.ID),
    Column("queue"),
    Column("name"),
    Column("state", Kind.STATE),
    Column("value", Kind.DATA, "shows"),
    Column("returnvalue", Kind.DATA, "result"),
    Column("failedReason", Kind.TEXT, "error"),
    Column("waits", Kind.DATA, "waits for"),
    Column("signals", Kind.DATA, "kept signals"),
    Column("suspended", Kind.NUMBER, "waits so far"),
    Column("generation", Kind.NUMBER, "beginnings before"),
    Column("undoable", Kind.FLAG, "can be undone"),
    Column("undone", Kind.FLAG),
    Column("undoing", Kind.DATA),
)
STEPS = (
    Column("number", Kind.NUMBER, "no."),
    Column("name"),
    Column("kind"),
    Column("status", Kind.STATE),
    Column("startedAt", Kind.TIME, "began"),
    Column("took", Kind.SPAN),
    Column("attempts", Kind.NUMBER),
    Column("until", Kind.TIME),
    Column("size", Kind.SIZE, "result"),
    Column("child", Kind.TEXT),
    Column("error"),
)
# The same as in bunqueue.app.task_options, as far as they apply to a single job.
OF_JOBS = ("priority", "delay", "max_attempts", "backoff", "ttl", "job_id", "unique_key", "group", "tags")

Id = Annotated[str, argument("ID", "The id of the workflow.")]
Name = Annotated[str, argument("NAME", "Its name: that of its function, unless it has another.")]
MaybeData = Annotated[
    Any,
    argument("[DATA]", "Its arguments by name: a JSON object, @FILE, or -.", parser=data),
]
Queue = Annotated[
    str,
    option("--queue", "-q", about="The queue of its app.", metavar="QUEUE", complete=completing.queues),
]
Signal = Annotated[str, argument("SIGNAL", "The name of the signal.")]
Key = Annotated[str, argument("KEY", "The key that they wait for.")]
SignalData = Annotated[
    Any, argument("[DATA]", "JSON, @FILE, or - for standard input. Default: null.", parser=data)
]
Ttl = Annotated[
    float | None,
    option("--ttl", about="Forget it after this time, if nobody waits for it.", metavar=SPAN, parser=span),
]
SignalNumber = Annotated[int, argument("NUMBER", "The number of the signal, as `show` prints it.")]
SignalId = Annotated[
    str | None,
    option("--signal-id", about="The same id sends it once, however often you try.", metavar="TEXT"),
]
Kept = Annotated[
    float | None,
    option(
        "--keep",
        about="How long it is there for those that come later. Default: 1d.",
        metavar=SPAN,
        parser=span,
    ),
]
From = Annotated[
    str | None,
    option(
        "--from", about="Forget this step and all that came after it, and go on from there.", metavar="STEP"
    ),
]
Resume = Annotated[bool, option("--resume", about="Try again to undo what could not be undone.")]
Skip = Annotated[str | None, option("--skip", about="Do not undo this step, and go on.", metavar="STEP")]
Edit = Annotated[
    str | None, option("--edit", about="Undo this step with --data instead of its result.", metavar="STEP")
]
EditData = Annotated[
    Any, option("--data", about="For --edit: JSON, @FILE or -.", metavar="JSON", parser=data)
]
Results = Annotated[bool, option("--results", about="Print the results of the steps, too.")]


@verb(
    app,
    """bunqueue workflow start order '{"order": {"id": "7"}}' --queue orders --job-id order-7""",
    "bunqueue workflow start nightly --queue imports --delay 2h",
)
@with_job_options(OF_JOBS)
def start(session: Session, name: Name, queue: Queue, data: MaybeData = None, **options: Any) -> None:
    """Start a workflow, and print its id. While one with the same --job-id is there, no other is started."""
    wanted = {**given(options), "workflow": True}
    job = session.queue(queue).add(name, {} if data is None else data, **wanted)
    if not job.created:
        session.out.note(f"bunqueue: workflow {job.id} is there already, so none was started")
    session.out.done(
        f"workflow {job.id} is started", {"id": job.id, "queue": queue, "existing": not job.created}, "id"
    )


@verb(
    app,
    "bunqueue workflow list",
    "bunqueue workflow list --queue orders --state waiting-signal",
    "bunqueue workflow list 'data.order.id = 7' --json",
    name="list",
    patient=True,
)
@with_filter
def list_(session: Session, where: Where = None, limit: Limit = 100, **filters: Any) -> None:
    """List workflows in any state, the newest first: of all queues or one, or those that meet conditions."""
    from bunqueue.client.options import checks

    checks.whole("limit", limit)
    conditions = " and ".join(filter(None, ("workflow = true", (where or "").strip())))
    place, wanted = searched(session, conditions, filters)
    found = list(islice(place.iter_found(**wanted), limit))
    session.out.rows(found, WORKFLOWS, none="there are no such workflows")


@verb(app, "bunqueue workflow show order-7", "bunqueue workflow show order-7 --json | jq '.steps[].name'")
def show(session: Session, workflow_id: Id, results: Results = False) -> None:
    """Print what a workflow waits for, how it has ended, and its steps: their states, times, attempts, errors
    and sizes."""
    handle = session.admin.find_workflow(workflow_id)
    info = handle.info()
    steps = [_step(step, results=results or session.out.as_json) for step in handle.history()]
    job = plain(handle.job())
    ended = {name: job.get(name) for name in ("returnvalue", "failedReason")}
    row = {**plain(info), "value": info.value, **ended}
    row["signals"] = [_signal(signal) for signal in info.signals]
    if session.out.as_json:
        session.out.record({**row, "steps": steps, "next": None}, WORKFLOW)
        return
    session.out.record(row, WORKFLOW)
    session.out.text("")
    columns = (*STEPS, Column("value", Kind.DATA, "value")) if results else STEPS
    session.out.rows(steps, columns, none="it has recorded no steps")


def _signal(signal: KeptSignal) -> dict[str, Any]:
    row = {name: value for name, value in plain(signal).items() if name != "data" and value is not None}
    return row if signal.raw_data is UNSET else {**row, "data": plain(signal.data)}


def _step(step: Step, *, results: bool) -> dict[str, Any]:
    row = {name: value for name, value in plain(step).items() if name not in ("result", "cursor")}
    took = None if step.ended_at_ms is None else step.ended_at_ms - step.started_at_ms
    if not results:
        return {**row, "took": took}
    if step.size and step.raw_result is UNSET:
        return {**row, "took": took, "value": None, "leftOut": f"{step.size} bytes"}
    return {**row, "took": took, "value": plain(step.result)}


@verb(
    app,
    "bunqueue workflow signal order-7 approval true",
    """bunqueue workflow signal order-7 paid '{"by": "card"}' --signal-id payment-81""",
)
def signal(
    session: Session,
    workflow_id: Id,
    signal: Signal,
    data: SignalData = None,
    ttl: Ttl = None,
    signal_id: SignalId = None,
) -> None:
    """Send a workflow a signal: the oldest wait for it takes it, or it is kept until there is one.

    Data of another type than it waits for is refused.
    """
    with _of(session, workflow_id) as handle:
        sent = handle.send_signal(signal, data, ttl=ttl, signal_id=signal_id)
    text = "took the signal" if sent.delivered else "has not waited for the signal yet: it is kept"
    if sent.waiting:
        text += f"; it waits for {', '.join(sent.waiting)}"
    _report(session, workflow_id, text, taken=sent.delivered, waiting=sent.waiting)


@verb(app, "bunqueue workflow drop-signal order-7 3")
def drop_signal(session: Session, workflow_id: Id, number: SignalNumber) -> None:
    """Remove a signal that no wait has taken, also one that was set aside as its data did not fit."""
    with _of(session, workflow_id) as handle:
        handle.drop_signal(number)
    _report(session, workflow_id, f"has no signal {number} any more", number=number)


@verb(app, 'bunqueue workflow broadcast paid order-7 \'{"by": "card"}\' --keep 2h')
def broadcast(session: Session, signal: Signal, key: Key, data: SignalData = None, keep: Kept = None) -> None:
    """Send a signal to all workflows that wait for it with this key, of all queues."""
    count = session.admin.broadcast(signal, key, data, keep=keep)
    session.out.done(f"taken by {count}, and kept for those that come later", {"count": count}, "count")


@verb(app, "bunqueue workflow cancel order-7 --reason 'the order was withdrawn'")
def cancel(session: Session, workflow_id: Id, reason: Reason = None, grace: Grace = 10_000) -> None:
    """Cancel a workflow: its steps that can be undone are undone, and its children are also cancelled."""
    with _of(session, workflow_id) as handle:
        stopped = handle.cancel(reason, grace=grace)
    text = "is cancelled" if stopped else "is being stopped, or undone"
    _report(session, workflow_id, text, running=not stopped)


@verb(app, "bunqueue workflow retry order-7", "bunqueue workflow retry order-7 --from pack")
def retry(session: Session, workflow_id: Id, step: From = None) -> None:
    """Run a workflow again that has ended, with the results of its finished steps; or from one of its steps.

    With --from it may also wait, but must not be active.
    """
    with _of(session, workflow_id) as handle:
        handle.retry() if step is None else handle.retry_from(step)
    _report(session, workflow_id, "runs again" if step is None else f"runs again from step {step}")


@verb(
    app,
    "bunqueue workflow undo order-7 --yes",
    "bunqueue workflow undo order-7 --resume",
    "bunqueue workflow undo order-7 --edit charge --data '\"charge-8\"'",
)
def undo(
    session: Session,
    workflow_id: Id,
    resume: Resume = False,
    skip: Skip = None,
    edit: Edit = None,
    data: EditData = None,
    yes: Yes = False,
) -> None:
    """Undo the steps of a workflow that has ended, the last first. Of one that is stuck, give --resume,
    --skip or --edit."""
    if (resume is True) + (skip is not None) + (edit is not None) > 1:
        raise SettingsError("--resume: give one of that, --skip and --edit")
    if data is not None and edit is None:
        raise SettingsError("--data: it is for --edit")
    with _of(session, workflow_id) as handle:
        if resume:
            handle.resume_undo()
        elif skip is not None:
            handle.skip_undo(skip)
        elif edit is not None:
            handle.edit_undo(edit, data)
        else:
            confirm(f"Undo all that workflow {workflow_id} of queue {handle.queue} has done?", yes)
            handle.undo()
    _report(session, workflow_id, "is being undone")


@contextmanager
def _of(session: Session, workflow_id: str) -> Iterator[Any]:
    """Yield the handle of a workflow. If the server refuses a command because of its state, the error names
    that state."""
    from bunqueue.errors import WrongState

    handle = session.admin.find_workflow(workflow_id)
    try:
        yield handle
    except WrongState as error:
        state = session.admin.get_state(workflow_id)
        text = f"workflow {workflow_id} is {state}: {error.reason}"
        raise WrongState(text, job_id=workflow_id, bound=error.bound) from None


def _report(session: Session, workflow_id: str, sentence: str, **facts: object) -> None:
    session.out.done(f"workflow {workflow_id} {sentence}", {"id": workflow_id, **facts})
