"""``bunqueue keys``: the encryption keys that stored payloads need."""

from __future__ import annotations

from typing import Annotated

import typer

from ..framework import exits
from ..framework.session import Session
from ..framework.shared import noun, verb
from ..framework.values import argument
from ..output.output import Column, Kind

app = noun("Which keys of encryption the stored payloads need.")

KEYS = (
    Column("key"),
    Column("queue"),
    Column("what"),
    Column("count", Kind.NUMBER),
    Column("example"),
)

Key = Annotated[str | None, argument("[KEY]", "The name of a key. Default: all keys.")]


@verb(app, "bunqueue keys", "bunqueue keys 2026-05 && echo 'nothing needs it any more'", patient=True)
def keys(session: Session, key: Key = None) -> None:
    """List what needs which key of encryption: data of jobs and schedules, results, errors, logs, steps and
    signals of workflows. A key that is not in the list can be left out of Encryption(keys).

    To answer, the server reads everything that it stores, a slice at a time.

    Exit status, with KEY: 1 when something needs it.
    """
    found = [use for use in session.admin.list_keys() if key in (None, use.key)]
    none = "no payload is encrypted" if key is None else f"nothing needs key {key}"
    session.out.rows(found, KEYS, none=none)
    if key is not None and found:
        raise typer.Exit(exits.FAILED)
