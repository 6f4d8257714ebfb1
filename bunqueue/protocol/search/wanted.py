"""The conditions of a command that finds jobs, from its fields and from its text."""

from typing import Any

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands.base import CommandError
from bunqueue.protocol.commands.find import Wanted

from .conditions import AT_LEAST, CONTAINS, EQUAL, LESS, Condition
from .text import MAX_CONDITIONS, parsed, path_of, state_of

_TIMES = {
    "created_after": ("created", AT_LEAST),
    "created_before": ("created", LESS),
    "finished_after": ("finished", AT_LEAST),
    "finished_before": ("finished", LESS),
}


def conditions_of(wanted: Wanted, now: int) -> list[Condition]:
    """All conditions except the command's queue; CommandError names a wrong field."""
    found: list[Condition] = []
    for field in ("state", "name", "group"):
        if values := _listed(getattr(wanted, field)):
            checked = tuple(map(state_of, values)) if field == "state" else tuple(values)
            found.append(Condition(field, EQUAL, checked))
    found += [Condition("tag", EQUAL, (tag,)) for tag in _listed(wanted.tag)]
    if wanted.worker is not None:
        found.append(Condition("worker", EQUAL, (wanted.worker,)))
    if wanted.error is not None:
        found.append(Condition("error", CONTAINS, (wanted.error,)))
    if wanted.error_type is not None:
        found.append(Condition("error_type", EQUAL, (wanted.error_type,)))
    for field, (name, comparison) in _TIMES.items():
        if (value := getattr(wanted, field)) is not None:
            found.append(Condition(name, comparison, (value,)))
    for path, value in (wanted.data or {}).items():
        found.append(Condition("data", EQUAL, (_scalar(path, value),), tuple(path_of(path))))
    if wanted.where is not None and wanted.where.strip():
        found += parsed(wanted.where, now)
    if len(found) > MAX_CONDITIONS:
        text = f"a search has at most {MAX_CONDITIONS} conditions, not {len(found)}"
        raise CommandError(text, Code.INVALID_FIELD, field="where", bound=MAX_CONDITIONS)
    return found


def _listed(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _scalar(path: str, value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):  # bool is an int
        return value
    text = f"data.{path[:64]} must be a text, a number, true, false or null"
    raise CommandError(text, Code.INVALID_FIELD, field=f"data.{path[:64]}")
