"""``bunqueue webhook``: URLs that receive events over HTTP."""

from __future__ import annotations

from typing import Annotated

from msgspec import to_builtins

from ..framework import completing
from ..framework.completing import one_of
from ..framework.session import Session
from ..framework.shared import noun, verb
from ..framework.values import Yes, argument, option
from ..output.output import Column, Kind
from ..output.progress import confirm

app = noun("Webhooks: list, add or remove them, switch them on and off.")

EVENTS = ("job.pushed", "job.started", "job.completed", "job.failed", "job.progress", "error.returned")
WEBHOOKS = (
    Column("id", Kind.ID),
    Column("url"),
    Column("queue"),
    Column("events", Kind.DATA),
    Column("enabled", Kind.FLAG, "on"),
    Column("successCount", Kind.NUMBER, "sent"),
    Column("failureCount", Kind.NUMBER, "failed"),
    Column("lastTriggered", Kind.TIME, "last"),
)

Target = Annotated[
    str, argument("URL", "Where to send events; by default only public addresses are allowed.")
]
Id = Annotated[str, argument("ID", "The id of the webhook.", completing.webhooks)]
Events = Annotated[
    list[str],
    option(
        "--event",
        "-e",
        about=f"{', '.join(EVENTS)}; may be repeated.",
        metavar="EVENT",
        complete=one_of(*EVENTS),
    ),
]
Queue = Annotated[
    str | None,
    option("--queue", "-q", about="Only events of this queue.", metavar="QUEUE", complete=completing.queues),
]
Secret = Annotated[
    str | None,
    option(
        "--secret", about="The key that signs deliveries; - reads it from standard input.", metavar="SECRET"
    ),
]


@verb(app, "bunqueue webhook list", name="list")
def list_(session: Session, queue: Queue = None) -> None:
    """List webhooks, oldest first."""
    found = session.admin.list_webhooks(queue)
    session.out.rows(found, WEBHOOKS, none="there are no webhooks")


@verb(
    app,
    "bunqueue webhook add https://example.com/hook --event job.completed --event job.failed --queue emails",
    "bunqueue webhook add https://example.com/hook --event job.failed --secret - < secret.txt",
)
def add(session: Session, target: Target, events: Events, queue: Queue = None, secret: Secret = None) -> None:
    """Send events of one queue, or of all, to a URL. Prints the webhook's id."""
    import sys

    if secret == "-":
        secret = sys.stdin.readline().rstrip("\n")
    hook = session.admin.add_webhook(target, events, secret=secret, queue=queue)  # type: ignore[arg-type]
    session.out.done(
        f"added webhook {hook}", {"id": hook, "url": target, "events": events, "queue": queue}, "id"
    )


@verb(app, "bunqueue webhook remove 0198... --yes")
def remove(session: Session, webhook_id: Id, yes: Yes = False) -> None:
    """Remove a webhook."""
    from bunqueue.errors import NotFound

    confirm(f"Remove webhook {webhook_id}?", yes)
    if not session.admin.remove_webhook(webhook_id):
        raise NotFound(f"there is no webhook {webhook_id}; bunqueue webhook list")
    session.out.done(f"webhook {webhook_id} is removed", {"id": webhook_id, "removed": True})


@verb(app, "bunqueue webhook test 0198...")
def test(session: Session, webhook_id: Id) -> None:
    """Send a test delivery to a webhook, and print the outcome."""
    from bunqueue.errors import BunqueueError

    trial = session.admin.test_webhook(webhook_id)
    if not trial.delivered:
        text = trial.error or f"the answer was {trial.status}"
        raise BunqueueError(f"webhook {webhook_id} did not take it: {text}")
    text = f"webhook {webhook_id} answered {trial.status} after {trial.duration_ms:.0f} ms"
    session.out.done(text, {"id": webhook_id, **to_builtins(trial)})


@verb(app, "bunqueue webhook enable 0198...")
def enable(session: Session, webhook_id: Id) -> None:
    """Switch a webhook on."""
    _switch(session, webhook_id, True)


@verb(app, "bunqueue webhook disable 0198...")
def disable(session: Session, webhook_id: Id) -> None:
    """Switch a webhook off: it receives nothing until it is switched on."""
    _switch(session, webhook_id, False)


def _switch(session: Session, webhook_id: str, enabled: bool) -> None:
    session.admin.set_webhook_enabled(webhook_id, enabled)
    text = f"webhook {webhook_id} is {'on' if enabled else 'off'}"
    session.out.done(text, {"id": webhook_id, "enabled": enabled})
