"""The job that is added when another one has failed for good, as users say it and as it is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from bunqueue.client.connection.options import refused, unfit
from bunqueue.protocol.commands import core

if TYPE_CHECKING:
    from bunqueue.client.options.job import NewJob

_FIELDS = frozenset(core.OnDead.__struct_fields__)


class MakesJob(Protocol):
    """A typed job, which makes one of its kind."""

    def job(self) -> NewJob: ...


def on_dead(
    value: Any,
    name: str,
    fields_of: Callable[[Mapping[str, object], Mapping[str, object]], Mapping[str, Any]],
    data_of: Callable[[object, str], Any],
) -> core.OnDead:
    """What is sent for a `NewJob`, or for a typed job without arguments. OptionError, PayloadError."""
    job = value.job() if hasattr(value, "job") and not hasattr(value, "id") else value
    if not all(hasattr(job, attribute) for attribute in ("name", "data", "options", "queue")):
        raise refused(name, value, "is no job; give a bunqueue.NewJob, a typed job, or its job()")
    if getattr(job, "children", None):
        raise refused(name, job, "waits for others; give a job alone")
    fields = {**fields_of(job.options, {})}
    if unknown := sorted(fields.keys() - _FIELDS):
        raise unfit(name, f"{unknown[0]} is not possible here, as the server adds it; leave it out")
    data = data_of(job.data, f"the data of the {name} job")
    return core.OnDead(queue=job.queue, name=job.name, data=data, **fields)
