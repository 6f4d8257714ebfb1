"""The job to add when another one has failed for good: from the user's options to the wire format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from bunqueue.client.connection.options import refused, unfit
from bunqueue.protocol.commands import core

if TYPE_CHECKING:
    from bunqueue.client.options.job import NewJob

_FIELDS = frozenset(core.OnDead.__struct_fields__)


class MakesJob(Protocol):
    """A typed job, which makes jobs of its type."""

    def job(self) -> NewJob: ...


def on_dead(
    value: Any,
    name: str,
    fields_of: Callable[[Mapping[str, object], Mapping[str, object]], Mapping[str, Any]],
    data_of: Callable[[object, str], Any],
) -> core.OnDead:
    """The wire form of a `NewJob`, or of a typed job without arguments. Raises OptionError, PayloadError."""
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
