"""``bunqueue errors``: what fails, in groups of errors that are alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from bunqueue.text import plural

from ..framework import completing
from ..framework.session import Session
from ..framework.shared import noun, verb
from ..framework.values import QueueName, argument, option
from ..output.output import Column, Kind, plain
from .dropped_letters import loss_text

if TYPE_CHECKING:
    from bunqueue.protocol.commands.error_groups import ErrorGroupView

app = noun("What fails: errors in groups; mute or watch them.")

GROUPS = (
    Column("id", Kind.ID, "group"),
    Column("queue"),
    Column("kept", Kind.NUMBER, "dead"),
    Column("failures", Kind.NUMBER),
    Column("shape", Kind.PROSE, "error"),
    Column("perMinute", Kind.NUMBER, "a minute"),
    Column("first", Kind.TIME, "since"),
    Column("last", Kind.TIME),
    Column("marks", title=""),
)
GROUP = (
    Column("id", Kind.ID, "group"),
    Column("queue"),
    Column("errorType", title="class"),
    Column("pattern", Kind.PROSE, "error"),
    Column("kept", Kind.NUMBER, "dead letters"),
    Column("failures", Kind.NUMBER),
    Column("dead", Kind.NUMBER, "failed for good"),
    Column("perMinute", Kind.NUMBER, "a minute"),
    Column("first", Kind.TIME),
    Column("last", Kind.TIME),
    Column("outcomes", Kind.COUNTS),
    Column("names", Kind.COUNTS),
    Column("workers", Kind.COUNTS),
    Column("versions", Kind.COUNTS),
    Column("muted", Kind.TIME),
    Column("watched", Kind.TIME),
    Column("resolved", Kind.TIME),
    Column("returned", Kind.TIME),
    Column("example", Kind.DATA),
)

AnyQueue = Annotated[
    str | None, argument("[QUEUE]", "The name of a queue. Default: all queues.", completing.queues)
]
Group = Annotated[str, argument("GROUP", "The id of a group, as bunqueue errors list shows it.")]
Limit = Annotated[int, option("--limit", "-n", about="The maximum number. Default: 20.", metavar="N")]


@verb(app, "bunqueue errors list", "bunqueue errors list emails --json", name="list", patient=True)
def list_(session: Session, queue: AnyQueue = None, limit: Limit = 20) -> None:
    """List the errors of a queue, or of all queues, in groups; those with the most dead letters first."""
    if queue is None:
        found = session.admin.error_groups(limit=limit)[:limit]
    else:
        found = session.queue(queue).error_groups(limit=limit)
    if session.out.as_json:
        session.out.rows(found, GROUPS, none="")
    else:
        session.out.rows(table_of(found), GROUPS, none="nothing has failed")
        for name in sorted({group.queue for group in found}):
            if text := loss_text(session.queue(name)):
                session.out.note(text)


def table_of(groups: list[ErrorGroupView]) -> list[dict[str, Any]]:
    """The rows of a table of groups."""
    return [
        {
            **plain(group),
            "shape": shape(group),
            "marks": marks(group),
            "perMinute": round(group.per_minute, 1),
        }
        for group in groups
    ]


def shape(group: ErrorGroupView) -> str:
    """A group as one line: the class, unless the text begins with it, and the text."""
    if group.id == "other":
        return "(other errors, of too many kinds)"
    kind = (group.error_type or "").rpartition(".")[2]
    text = group.pattern or "(no text)"
    return text if not kind or text.startswith(kind) else f"{kind}: {text}"


def outcomes(group: ErrorGroupView) -> dict[str, int]:
    """How the attempts ended, in words: the server has an older name for an error that the handler raised."""
    return {name.replace("explicit_fail", "failed"): count for name, count in group.outcomes.items()}


def marks(group: ErrorGroupView) -> str:
    """The marks that people have put on a group."""
    found = (
        ("muted", group.muted_ms),
        ("watched", group.watched_ms),
        ("resolved", group.resolved_ms),
    )
    return ", ".join(word for word, at in found if at is not None)


@verb(app, "bunqueue errors show emails 5f0c1d2e3a4b", patient=True)
def show(session: Session, queue: QueueName, group: Group) -> None:
    """Show one group: where and how fast it fails, and an example with its stack."""
    found = session.queue(queue).error_group(group)
    if session.out.as_json:
        session.out.record(found, GROUP)
        return
    record = {**plain(found), "perMinute": round(found.per_minute, 1), "outcomes": outcomes(found)}
    example = found.example
    record["example"] = None
    session.out.record(record, GROUP)
    if example is not None:
        session.out.note(f"\nattempt {example.attempt} of job {example.job_id} ({example.name}):")
        session.out.note(example.stack or example.error or "(no text)")
    if found.kept:
        session.out.note(
            f"\nbunqueue dlq retry {queue} --error-group {group} runs {plural(found.kept, 'job')} again"
        )


def _change(session: Session, queue: str, group: str, text: str, **changes: bool) -> None:
    found = session.queue(queue).set_error_group(group, **changes)
    session.out.done(f"{text}: {shape(found)}", {"queue": queue, "group": group, **changes})


@verb(app, "bunqueue errors mute emails 5f0c1d2e3a4b")
def mute(session: Session, queue: QueueName, group: Group) -> None:
    """Mute a group: it raises no alert, but is still counted."""
    _change(session, queue, group, "muted", muted=True)


@verb(app, "bunqueue errors unmute emails 5f0c1d2e3a4b")
def unmute(session: Session, queue: QueueName, group: Group) -> None:
    """Let a group raise alerts again."""
    _change(session, queue, group, "raises alerts again", muted=False)


@verb(app, "bunqueue errors watch emails 5f0c1d2e3a4b")
def watch(session: Session, queue: QueueName, group: Group) -> None:
    """Report when a group comes back: an event error-returned, a webhook error.returned."""
    _change(session, queue, group, "its return will be reported", watched=True)


@verb(app, "bunqueue errors unwatch emails 5f0c1d2e3a4b")
def unwatch(session: Session, queue: QueueName, group: Group) -> None:
    """No longer report when a group comes back."""
    _change(session, queue, group, "no longer watched", watched=False)


@verb(app, "bunqueue errors resolve emails 5f0c1d2e3a4b")
def resolve(session: Session, queue: QueueName, group: Group) -> None:
    """Mark a group as resolved: with its next failure it has come back."""
    _change(session, queue, group, "resolved", resolved=True)
