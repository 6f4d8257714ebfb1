"""Options of a schedule, and their conversion to the wire format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypedDict

from msgspec.msgpack import Decoder

from bunqueue.client.connection.options import Duration, unfit, unknown_option, whole_milliseconds
from bunqueue.client.options import checks
from bunqueue.client.options.cron_expression import check_expression
from bunqueue.client.options.job import JobOptions, check_spans, job_data, options_of, wire_fields
from bunqueue.client.options.types import Dedup
from bunqueue.errors import OptionError
from bunqueue.protocol.commands.cron import Cron, OnMissed, Overlap, SpawnOptions, contradictions

_ALLOWED = SpawnOptions.__struct_fields__
SPAWN_OPTIONS = frozenset(_ALLOWED)
"""Options of the jobs of a schedule."""


class CronOptions(TypedDict, total=False):
    """Options of a schedule: `schedule` or `every`, and optionally others."""

    schedule: str | None
    """A cron expression: 5 fields, 6 with leading seconds, or @hourly, @daily, ..."""
    every: Duration | None
    """In place of `schedule`: the time between two jobs."""
    timezone: str | None
    """For `schedule`, an IANA name such as Europe/Rome; UTC unless given."""
    job_name: str | None
    """The name of its jobs; "default" unless given."""
    priority: int | None
    """The priority of its jobs."""
    limit: int | None
    """How many jobs to add before it ends; no limit unless given."""
    immediately: bool | None
    """Add the first job now, if the schedule is new."""
    prevent_overlap: bool | None
    """Add no job while the previous one waits or runs; True unless given."""
    skip_if_no_worker: bool | None
    """Add no job while the queue has no workers."""
    skip_missed_on_restart: bool | None
    """Skip runs that were due while the server was down; True unless given."""
    overlap: Overlap | None
    """What to do with a run if the previous run's job has not ended, retries included. "allow": add its job
    anyway; "skip": leave the run out; "queue": wait until the other job has ended; "cancel": cancel the other
    job, and start this one once that has stopped. Replaces `prevent_overlap`.
    """
    on_missed: OnMissed | None
    """How many of the runs that were due while the server was down are made up for: "none", "one" or "all".
    Replaces `skip_missed_on_restart`.
    """
    max_backlog: int | None
    """How many runs may wait with `overlap="queue"`, and how many missed runs, the latest ones, are made up
    for with `on_missed="all"`; 1 to 1000, 100 unless given.
    """
    move: bool | None
    """Take the name over from a schedule of another queue; without it that is refused."""
    unique_key: str | None
    """The unique key of its jobs, in place of the schedule's own."""
    dedup: Dedup | None
    """Other ways to treat a job whose key is taken."""
    job_options: JobOptions | None
    """Other options of its jobs: delay, timeout, max_attempts, backoff, retry_on, never_on, ttl,
    stall_timeout, lifo, durable, remove_on_complete, remove_on_fail, keep_completed, keep_failed, keep_logs,
    stack_trace_limit, tags, headers.
    """


_decode = Decoder().decode
_OWN = frozenset(CronOptions.__annotations__)
_KEYS = ("unique_key", "dedup")
_SAME = {"overlap": "prevent_overlap", "on_missed": "skip_missed_on_restart"}
"""Options that replace others."""


def cron_command(
    queue: str, name: str, data: object, options: Mapping[str, Any], app: str | None = None
) -> Cron:
    """The command that sets a schedule, which then belongs to `app`. Raises OptionError or PayloadError."""
    given = {option: value for option, value in options.items() if value is not None}
    if unknown := given.keys() - _OWN:
        raise unknown_option("a schedule", min(unknown), _OWN)
    if ("schedule" in given) == ("every" in given):
        raise unfit("schedule", "give either a cron expression or every, such as every=60_000")
    for option, other in _SAME.items():
        if option in given and other in given:
            raise unfit(option, f"give either that or {other}")
    keys = wire_fields({key: given.pop(key) for key in _KEYS if key in given}, {})
    if "every" in given:
        given["repeat_every"] = whole_milliseconds(given.pop("every"), "every")
    if "limit" in given:
        given["max_limit"] = checks.whole("limit", given.pop("limit"))
    if "timezone" in given and "schedule" not in given:
        raise unfit("timezone", "it goes with a cron expression; intervals know none")
    if "schedule" in given:
        check_expression(given["schedule"], given.get("timezone"))
    if "job_name" in given:
        checks.job_name(given["job_name"])
    if "job_options" in given:
        given["job_options"] = _spawn_options(given["job_options"])
    data = job_data(data, f"the data of cron {name!r}")
    given.setdefault("move", False)
    command = Cron(name=name, queue=queue, data=data, app=app, **given, **keys)
    checks.checked(command, repeat_every="every", max_limit="limit")
    for field, problem in contradictions(command):
        raise unfit(_in_python(field), _in_python(problem))
    return command


def _in_python(text: str) -> str:
    """Convert the wire names in a text to their Python names."""
    return re.sub(r"(?<=[a-z])[A-Z]", lambda found: f"_{found[0].lower()}", text)


def sent_data(command: Cron) -> Any:
    """The data of a schedule's jobs, as the server shows it."""
    return _decode(command.data)


def _spawn_options(options: JobOptions) -> SpawnOptions:
    for name in options_of(options, "job_options"):
        if name not in _ALLOWED:
            raise OptionError(
                f"job_options: {name} is not an option of a schedule; there are {', '.join(_ALLOWED)}",
                field=f"job_options.{name}",
            )
    check_spans(options, "job_options")
    return SpawnOptions(**wire_fields(options, {}))
