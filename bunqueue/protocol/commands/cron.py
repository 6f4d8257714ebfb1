"""Schedules: jobs that are pushed at set times.  docs/cron.md has the rules."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct

from bunqueue.model.durations import YEAR_MS
from bunqueue.model.job import NIL
from bunqueue.model.marks import Mark
from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    AnsweredBy,
    Command,
    Data,
    IdOf,
    Key,
    Merge,
    NameOf,
    Ok,
    Priority,
    QueueName,
    QueueOf,
    Reach,
    Reply,
    RequestId,
    Route,
    Tag,
    Text,
    command,
    http,
)
from bunqueue.protocol.commands.core import AddedJob, Dedup
from bunqueue.protocol.commands.times import Expression
from bunqueue.protocol.moments import MaybeMoment, Moment

MAX_INTERVAL_MS = 100 * YEAR_MS

ScheduleName = Annotated[
    str, Meta(min_length=1, max_length=256, description="unique over all queues"), Mark.NAME
]
AppName = Annotated[str, Meta(min_length=1, max_length=256)]
Interval = Annotated[
    int,
    Meta(
        ge=1,
        le=MAX_INTERVAL_MS,
        extra={"problem": "must be a positive whole number of milliseconds, at most 100 years"},
    ),
]

Overlap = Literal["allow", "skip", "queue", "cancel"]
OnMissed = Literal["none", "one", "all"]
MAX_BACKLOG, DEFAULT_BACKLOG = 1000, 100
Backlog = Annotated[int, Meta(ge=1, le=MAX_BACKLOG)]


class SpawnOptions(AddedJob, kw_only=True, omit_defaults=True, gc=False):
    """The options of the jobs that a schedule pushes, as in PUSH.  Times are in ms."""

    workflow: bool = False


class CronFields(Struct, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """The definition of a schedule, without its data and its history.

    ``overlap`` says what happens to a run while the last run's job has not ended, including retries:

    - ``allow``: its job is added as well;
    - ``skip``: the run is skipped;
    - ``queue``: its job is added when the other job has ended; up to ``maxBacklog`` runs wait, further runs
      are skipped;
    - ``cancel``: the other job is cancelled, and the new one starts when that one has stopped.

    Without ``overlap``, ``preventOverlap`` applies.  ``onMissed`` says how many runs make up for those that
    were missed while the server was down: ``none``, ``one``, or ``all`` (the last ``maxBacklog`` of them).
    Without ``onMissed``, ``skipMissedOnRestart`` applies.
    """

    name: ScheduleName
    queue: QueueName
    schedule: Expression | None = None
    repeat_every: Interval | None = None
    timezone: Text | None = None
    job_name: Text | None = None
    priority: Priority = 0
    max_limit: Annotated[int, Meta(le=0x7FFF_FFFF)] | None = None  # runs; 0 and below: no limit
    prevent_overlap: bool = True
    skip_if_no_worker: bool = False
    skip_missed_on_restart: bool = True
    overlap: Overlap | None = None
    on_missed: OnMissed | None = None
    max_backlog: Backlog | None = None  # default: 100
    unique_key: Key | None = None
    dedup: Dedup | None = None
    job_options: SpawnOptions | None = None
    app: AppName | None = None  # the app that declares it


def contradictions(command: CronFields) -> Iterator[tuple[str, str]]:
    """Settings that contradict each other or have no effect: the field, and what is wrong with it."""
    overlap, on_missed = command.overlap, command.on_missed
    if overlap not in (None, "allow"):
        if command.unique_key is not None or command.dedup is not None:
            yield "overlap", f"{overlap} has a unique key of its own; leave out uniqueKey and dedup"
        if not command.prevent_overlap:
            yield "preventOverlap", f"false contradicts overlap {overlap}; leave out one of them"
    if on_missed == "none" and not command.skip_missed_on_restart:
        yield "skipMissedOnRestart", "false contradicts onMissed none; leave out one of them"
    overlaps = overlap in ("allow", "queue") or (overlap is None and not command.prevent_overlap)
    if on_missed == "all" and not overlaps:
        yield "onMissed", "all of them need overlap allow or queue: else only the first would have a job"
    if command.max_backlog is not None and on_missed != "all" and overlap != "queue":
        yield "maxBacklog", "it goes with overlap queue or onMissed all"


class CronRun(Struct, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """The last run that pushed a job; times are in epoch ms."""

    at_ms: float = msgspec.field(name="at")
    job_id: IdOf
    outcome: str | None = None  # completed, failed, cancelled, expired or removed; None: not ended
    ended_at_ms: float | None = msgspec.field(name="endedAt", default=None)

    at = Moment("at_ms")
    ended_at = MaybeMoment("ended_at_ms")


class CronView(Struct, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A schedule as shown to clients; times are in epoch ms.  Optional fields with their default value are
    left out on the wire.
    """

    name: NameOf
    job_name: str
    queue: QueueOf
    schedule: str | None
    repeat_every: int | float | None
    next_run_ms: float = msgspec.field(name="nextRun")
    executions: int
    max_limit: int | None
    timezone: str | None
    priority: int
    prevent_overlap: bool = True
    skip_if_no_worker: bool = False
    skip_missed_on_restart: bool = True
    overlap: Overlap | None = None
    on_missed: OnMissed | None = None
    max_backlog: int | None = None
    backlog: int = 0  # runs that wait for the last run's job to end
    unique_key: str | None = None
    dedup: Dedup | None = None
    job_options: SpawnOptions | None = None
    app: str | None = None  # the app that declares it
    paused: bool = False
    missed: int = 0  # runs that were missed while the server was down
    last_run: CronRun | None = None
    data: Annotated[Any, Mark.CONTENT] = None  # of its jobs; left out in lists

    next_run = Moment("next_run_ms")


class CronReply(Reply, kw_only=True):
    cron: CronView


class CronListReply(Reply, kw_only=True):
    """All schedules, sorted by name."""

    crons: list[CronView]


# A name is unique on the whole server: the shard of the queue stores the schedule, all others delete it.
@http("POST /crons", Tag.CRON)
@http("PUT /crons/{name}", Tag.CRON)
@command(
    Route.ALL, Verb.OPERATE, merge=Merge.ANY, writes=True, repeatable=True, grows=True, reach=Reach.ALLOWED
)
class Cron(CronFields, AnsweredBy[CronReply], kw_only=True, tag_field="cmd", tag="Cron", gc=False):
    """Push a job at every time of a cron expression, or every ``repeatEvery`` ms.

    This replaces the schedule with the same name in that queue; if the interval or expression is unchanged,
    the next run stays as planned.  It also replaces one in another queue, unless ``move`` is false: then a
    name that belongs to another queue, or another app, is refused.
    """

    data: Raw = Raw(NIL)
    move: bool = True
    immediately: bool = False  # the first run of a new schedule is now
    req_id: RequestId = UNSET  # a struct has only one base, so Command's field is repeated here


@http("DELETE /crons/{name}", Tag.CRON)
@command(Route.ALL, Verb.OPERATE, merge=Merge.ANY, writes=True, reach=Reach.ALLOWED)
class CronDelete(Command[Ok], tag="CronDelete"):
    """Remove a schedule; the jobs it has pushed stay.  With ``app``, only if that app declared it."""

    name: ScheduleName
    app: AppName | None = None


@http("GET /crons/{name}", Tag.CRON)
@command(Route.ALL, Verb.SEE | Verb.READ, merge=Merge.ANY, reach=Reach.ALLOWED)
class CronGet(Command[CronReply], tag="CronGet"):
    """Get one schedule."""

    name: ScheduleName


@http("POST /crons/{name}/pause", Tag.CRON)
@command(Route.ALL, Verb.OPERATE, merge=Merge.ANY, writes=True, repeatable=True, reach=Reach.ALLOWED)
class CronPause(Command[CronReply], tag="CronPause"):
    """Pause a schedule until CronResume; runs due in the meantime are skipped."""

    name: ScheduleName


@http("POST /crons/{name}/resume", Tag.CRON)
@command(Route.ALL, Verb.OPERATE, merge=Merge.ANY, writes=True, repeatable=True, reach=Reach.ALLOWED)
class CronResume(Command[CronReply], tag="CronResume"):
    """Resume a paused schedule; it starts with its next run."""

    name: ScheduleName


class CronRunReply(Reply, kw_only=True):
    """The new job; or, if ``existing`` is true, the job that already holds the unique key."""

    id: IdOf
    queue: QueueOf
    existing: bool = False


@http("POST /crons/{name}/run", Tag.CRON)
@command(Route.ALL, Verb.OPERATE, merge=Merge.ANY, writes=True, grows=True, reach=Reach.ALLOWED)
class CronTrigger(Command[CronRunReply], tag="CronTrigger"):
    """Push the job of a schedule now, even if paused.  Its next run and ``executions`` do not change."""

    name: ScheduleName


class CronRuns(Struct, gc=False):
    """The run times in epoch ms; fewer than requested if the schedule ends earlier."""

    runs: list[float]


@http("GET /crons/{name}/next", Tag.CRON)
@command(Route.ALL, Verb.SEE, merge=Merge.ANY, reach=Reach.ALLOWED)
class CronNext(Command[Data[CronRuns]], tag="CronNext"):
    """Get the next ``count`` run times of a schedule."""

    name: ScheduleName
    count: Annotated[int, Meta(ge=1, le=100)] = 10


@http("GET /crons", Tag.CRON)
@command(Route.ALL, Verb.SEE | Verb.READ, merge=Merge.SORTED, heavy=True, reach=Reach.ALLOWED)
class CronList(Command[CronListReply], tag="CronList"):
    """List all schedules."""
