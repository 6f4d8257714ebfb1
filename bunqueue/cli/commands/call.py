"""``bunqueue call``: any command of the protocol, by its name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bunqueue.protocol.from_text import fields_of

from ..framework.completing import commands, fields_of_command
from ..framework.session import Session
from ..framework.shared import noun, verb
from ..framework.values import argument
from ..output.output import Column, Output, encoded

app = noun("Send any command of the protocol by its name.")

Name = Annotated[str, argument("COMMAND", "Its name in PROTOCOL.md, such as GetGroupWeight.", commands)]
Fields = Annotated[
    list[str],
    argument(
        "[FIELD=VALUE]...",
        "Its fields. A value is JSON, or else a text; dedup.ttl=5000 is a field of a field.",
        fields_of_command,
    ),
]


@verb(
    app,
    "bunqueue call Ping",
    "bunqueue call SetGroupWeight queue=emails groupId=acme weight=3",
    'bunqueue call PUSH queue=emails data=\'{"to": "ada@example.com"}\' dedup.ttl=60000 --json',
    name="call",
)
def call(session: Session, name: Name, fields: Fields = []) -> None:  # noqa: B006
    """Send a command of the protocol by its name, and print the fields of its reply."""
    try:
        given = fields_of(name, map(_split, fields))
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from None
    _print(session.out, name, session.admin.call(name, given))


def _split(text: str) -> tuple[str, str]:
    field, found, value = text.partition("=")
    if not found:
        raise typer.BadParameter(f"{text!r} is no field; give FIELD=VALUE, such as queue=emails.")
    return field, value


def _print(out: Output, name: str, reply: dict[str, Any]) -> None:
    if out.as_json:
        out.text(encoded(reply))
        return
    value: Any = reply
    while isinstance(value, dict) and len(value) == 1:
        (inner,) = value.values()
        if not _has_fields(inner):
            break
        value = inner
    if isinstance(value, list):
        out.rows(value, _columns(value), none="nothing")
    elif len(value) == 1:
        ((field, found),) = value.items()
        out.done(f"{field}: {found}", value, field)
    elif value:
        out.record(value, _columns([value]))
    else:
        out.done(f"{name} is done", reply)


def _has_fields(value: Any) -> bool:
    """Whether a value is a map, or a list of maps."""
    return isinstance(value, dict) or (
        isinstance(value, list) and all(isinstance(each, dict) for each in value)
    )


def _columns(rows: list[dict[str, Any]]) -> list[Column]:
    return [Column(name) for name in dict.fromkeys(name for row in rows for name in row)]
