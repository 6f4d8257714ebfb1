"""``bunqueue function``: what apps have declared about their functions."""

from __future__ import annotations

from typing import Annotated

from ..framework import completing
from ..framework.session import Session
from ..framework.shared import noun, verb
from ..framework.values import QueueName, Yes, argument, option
from ..output.output import Column, Kind, plain
from ..output.progress import confirm

app = noun("Functions that apps have declared: list, show, declare or remove them.")

FUNCTIONS = (
    Column("queue"),
    Column("name"),
    Column("arguments"),
    Column("options", Kind.DATA),
    Column("app"),
    Column("version"),
    Column("declared", Kind.TIME),
)
FUNCTION = (
    Column("queue"),
    Column("name"),
    Column("aliases"),
    Column("description", Kind.PROSE),
    Column("arguments", Kind.PROSE),
    Column("options", Kind.DATA),
    Column("schema", Kind.DATA),
    Column("invalidJobs", title="invalid jobs"),
    Column("app"),
    Column("version"),
    Column("declared", Kind.TIME),
    Column("by"),
    Column("revision", Kind.NUMBER),
    Column("changed", Kind.TIME),
    Column("retired", Kind.TIME, "left out since"),
)

AnyQueue = Annotated[
    str | None, argument("[QUEUE]", "The name of a queue. Default: all queues.", completing.queues)
]
Name = Annotated[str, argument("NAME", "The name of a function, as bunqueue function list shows it.")]
Target = Annotated[str, argument("TARGET", "module:name of an app, such as tasks:app.")]
Folder = Annotated[str, option("--app-dir", about="Where the module is. Default: here.", metavar="FOLDER")]


@verb(app, "bunqueue function list", "bunqueue function list emails --json", name="list", patient=True)
def list_(session: Session, queue: AnyQueue = None) -> None:
    """List the functions of a queue, or of all queues."""
    found = session.admin.functions() if queue is None else session.queue(queue).functions()
    session.out.rows(found, FUNCTIONS, none="no app has declared functions")


@verb(app, "bunqueue function show emails welcome")
def show(session: Session, queue: QueueName, name: Name) -> None:
    """Show a function: its options, its arguments as a JSON Schema, and who declared it when."""
    found = session.queue(queue).function(name)
    session.out.record({**plain(found), "aliases": ", ".join(found.aliases) or None}, FUNCTION)


@verb(app, "bunqueue function declare tasks:app")
def declare(session: Session, target: Target, app_dir: Folder = ".") -> None:
    """Send what an app declares, as its workers do when they start: functions, schedules and limits.

    The app is imported; the server is the one that the options here name.
    """
    from ..framework.target import app_of

    found = app_of(target, app_dir)
    count = found._declare_over(session.admin)
    session.out.done(f"declared {count} of app {found.name}", {"app": found.name, "functions": count})


@verb(app, "bunqueue function remove emails welcome --yes")
def remove(session: Session, queue: QueueName, name: Name, yes: Yes = False) -> None:
    """Forget a function. Its app declares it again when it starts."""
    confirm(f"Forget function {name} of queue {queue}?", yes)
    session.queue(queue).remove_function(name)
    session.out.done(f"function {name} is forgotten", {"queue": queue, "name": name, "removed": True})
