"""``bunqueue promote``: makes a standby the primary."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from bunqueue.text import time_of

from ..framework.session import Session
from ..framework.shared import verb
from ..framework.values import option
from ..output.progress import waiting

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)

DIES_S = 20.0  # longer than a primary that has just died counts as alive
RESTARTS_S = 300.0  # to start on a large folder
AGAIN_S = 0.5

Force = Annotated[
    bool,
    option("--force", about="Even if the old primary is alive, or the place of the backups does not answer."),
]


@verb(app, "bunqueue promote --host standby.example", "bunqueue promote --force")
def promote(session: Session, force: Force = False) -> None:
    """Make a standby (bunqueue start --follow) the primary.

    It takes all that the primary before had stored, and restarts. What that one had acknowledged in its last
    second may be lost. Should it still run, or come back, it ends. Stop it before, if you can: then nothing
    is lost.
    """
    with waiting("promoting"):
        done = _claimed(session, force)
        _until_primary(session)
    session.out.done(
        f"{session.endpoint.address} is the primary now (term {done.term}), with all that was stored until "
        f"{time_of(int(done.until))}",
        {"term": done.term, "until": done.until},
        "term",
    )


def _claimed(session: Session, force: bool) -> Any:
    """Have the standby claim to be the primary; waits a little if that one seems to be alive."""
    from bunqueue.errors import CommandFailed

    deadline = time.monotonic() + DIES_S
    while True:
        try:
            return session.admin.promote_standby(force=force)
        except CommandFailed as error:
            if error.server_code != "PRIMARY_ALIVE" or time.monotonic() > deadline:
                raise
        time.sleep(AGAIN_S)


def _until_primary(session: Session) -> None:
    """Wait until the server has restarted."""
    from bunqueue.errors import BunqueueError, CommandFailed

    deadline = time.monotonic() + RESTARTS_S
    while True:
        try:
            session.admin.promote_standby()
        except CommandFailed as error:
            if error.server_code == "NO_STANDBY":
                return
        except BunqueueError:
            if time.monotonic() > deadline:
                raise
        time.sleep(AGAIN_S)
