"""The filter of a search, as users give it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypedDict

from msgspec import UnsetType

from bunqueue.client.codecs.codec import Codec
from bunqueue.client.connection.options import refused, unfit, unknown_option
from bunqueue.client.options import checks
from bunqueue.client.options.moments import PastMoment, past_moment
from bunqueue.model.states import STATES
from bunqueue.protocol.commands.base import CommandError
from bunqueue.protocol.search.text import parsed, path_of

_ENCODED = "is encoded by the codec, so the server cannot compare it; search by tags, names, groups or times"
_TIMES = ("created_after", "created_before", "finished_after", "finished_before")
_LISTS = ("state", "name", "tag", "group")


class JobFilter(TypedDict, total=False):
    """Selects jobs: all given conditions must apply. A list of states, names or groups matches any of them; a
    list of tags matches jobs that have all of them.
    """

    state: str | Sequence[str] | None
    """waiting, delayed, active, waiting-children, waiting-signal, completed, failed, cancelled or stuck; or,
    as a subset of waiting, prioritized or paused.
    """
    name: str | Sequence[str] | None
    tag: str | Sequence[str] | None
    group: str | Sequence[str] | None
    worker: str | None
    """The id of the worker that has the job, or had it when it ended."""
    error: str | None
    """A part of the last error, ignoring case. Never matches completed jobs."""
    error_type: str | None
    """The class of the last error, with or without its module. Never matches completed jobs."""
    created_after: PastMoment | None
    """From this moment on: a datetime with a time zone, a timedelta (so long ago), or ms since the epoch."""
    created_before: PastMoment | None
    finished_after: PastMoment | None
    finished_before: PastMoment | None
    data: Mapping[str, str | float | bool | None] | None
    """Values of fields of the data by path, for example {"order.id": 7}."""
    where: str | None
    """Conditions as text, for example "data.order.total > 100 and name ~ invoice"; see docs/find.md."""


def wanted(which: Mapping[str, Any], codec: Codec | None = None) -> dict[str, Any]:
    """The fields of a command. Also raises OptionError for fields that the codec hides from the server."""
    for name in which:
        if name not in JobFilter.__annotations__:
            raise unknown_option("a search", name, JobFilter.__annotations__)
    found = {name: value for name, value in which.items() if value is not None}
    for name in _LISTS:
        if isinstance(found.get(name), Collection) and not isinstance(found[name], str):
            found[name] = list(found[name])
            if not found[name]:
                raise refused(name, found[name], "names none; give some, or None for any")
    if "state" in found:
        checks.states(STATES, found["state"] if isinstance(found["state"], list) else [found["state"]])
    for name in _TIMES:
        if name in found:
            found[name] = past_moment(found[name], name)
    if "data" in found:
        found["data"] = _values(found["data"])
    if "where" in found:
        _check_text(found["where"])
    if codec is not None:
        _check_visible(found)
    return found


def _check_visible(found: Mapping[str, Any]) -> None:
    for path in found.get("data", ()):
        raise refused("data", path, _ENCODED)
    for condition in parsed(found["where"], 0) if found.get("where", "").strip() else ():
        if condition.field == "data":
            path = ".".join(("data", *condition.path))
            raise refused("where", path, _ENCODED)


def _values(data: Any) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise refused("data", data, 'is not allowed; give a map such as {"order.id": 7}')
    for path, value in data.items():
        if not isinstance(path, str) or not (value is None or isinstance(value, str | int | float)):
            raise refused("data", {path: value}, "is not allowed; give a path, and a plain value")
        try:
            path_of(path)
        except CommandError as error:
            raise unfit("data", error.args[0].removeprefix("where: ")) from None
    return dict(data)


def _check_text(where: Any) -> None:
    if not isinstance(where, str):
        raise refused("where", where, 'is not allowed; give a text such as "state = failed"')
    try:
        if where.strip():
            parsed(where, 0)
    except CommandError as error:
        value = None if isinstance(error.value, UnsetType) else error.value
        raise checks.refusal(str(error), error, value) from None
