"""The tables of `bunqueue.analytics.numbers`, except the anomalies, as SQL over the tables ``jobs`` and
``attempts`` of `bunqueue.analytics.facts`.

This is the only place where a figure is computed: every engine runs the same text.  Counts and sums are
computed for the finest groups first, and added up from there.  Percentiles are exact."""

from __future__ import annotations

from bunqueue.analytics import numbers
from bunqueue.analytics.engine import Engine
from bunqueue.analytics.facts import LOST
from bunqueue.analytics.numbers import PERCENTILES
from bunqueue.analytics.times import Range

SLOWEST = 10  # of each queue
FINEST = ("host", "queue", "name", "bucket")
GROUPS = (
    numbers.TOTALS,
    numbers.OVER_TIME,
    numbers.QUEUES,
    numbers.QUEUES_OVER_TIME,
    numbers.NAMES,
    numbers.NAMES_OVER_TIME,
)
_OUTCOMES = ("completed", "failed", "cancelled", "expired", "removed")
_SUMS = ("created", *_OUTCOMES, "retried", "attempts", "failed_attempts", "run_total", "run_wasted")
_SPREAD = (*(f"p{round(part * 100)}" for part in PERCENTILES), "max")
_DURATIONS = ("wait", "run", "total")
_WHOSE = ", ".join(FINEST)


def mask_of(table: numbers.Table) -> int:
    """The number of a table in `activity`: one bit for each key that it lacks."""
    keys = [key.name for key in table.keys]
    return sum((key not in keys) << 3 - bit for bit, key in enumerate(FINEST))


def _mask() -> str:
    """SQL for `mask_of`."""
    return " + ".join(f"grouping({key}) * {8 >> bit}" for bit, key in enumerate(FINEST))


def _sets(more: str = "") -> str:
    """The groups of all tables, each together with another key."""
    keys = (", ".join(filter(None, (more, *(key.name for key in table.keys)))) for table in GROUPS)
    return "grouping sets ({})".format(", ".join(f"({each})" for each in keys))


def activity(engine: Engine, span: Range) -> str:
    """All of GROUPS in one table: ``mask`` (see `mask_of`), their keys, null where a table does not have
    them, and the numbers of `numbers.ACTIVITY`."""
    sums = ", ".join(f"cast(coalesce(sum({name}), 0) as bigint) as {name}" for name in _SUMS)
    spreads = [f"{what}_{part}" for what in _DURATIONS for part in _SPREAD]
    nothing = ", ".join(f"cast(null as double) as {name}" for name in spreads)
    pivoted = ", ".join(
        f"max(case when what = '{what}' then {part} end) as {what}_{part}"
        for what in _DURATIONS
        for part in _SPREAD
    )
    merged = ", ".join(f"max({name}) as {name}" for name in (*_SUMS, *spreads))
    columns, pace = (
        ", ".join(number.name for number in numbers.ACTIVITY),
        _rate("completed", span.seconds("bucket")),
    )
    return f"""
with finest as ({_finest(span)}),
sums as (
    select {_mask()} as mask, {_WHOSE}, {sums} from finest group by {_sets()}
), durations as ({_durations(span)}),
spreads as (
    select what, {_mask()} as mask, {_WHOSE}, {engine.percentiles("ms")} as parts,
        cast(max(ms) as double) as max
    from durations group by {_sets("what")}
), spread as (
    select what, mask, {_WHOSE}, try_element_at(parts, 1) as p50, try_element_at(parts, 2) as p95,
        try_element_at(parts, 3) as p99, max from spreads
), pivoted as (
    select mask, {_WHOSE}, {", ".join(f"cast(null as bigint) as {name}" for name in _SUMS)}, {pivoted}
    from spread group by mask, {_WHOSE}
), united as (
    select *, {nothing} from sums union all select * from pivoted
), merged as (
    select mask, {_WHOSE}, {merged} from united group by mask, {_WHOSE}
), counted as (
    select mask, {_WHOSE}, {", ".join(f"coalesce({name}, 0) as {name}" for name in _SUMS)},
        {", ".join(spreads)} from merged
), rated as (
    select *, {_rate("failed", "completed + failed")} as failure_rate,
        {_rate("failed_attempts", "attempts")} as attempt_failure_rate,
        {_rate("retried", "completed + failed")} as retry_rate,
        {pace} as throughput,
        {_rate("run_wasted", "run_total")} as waste_rate
    from counted
)
select mask, {_WHOSE}, {columns} from rated"""


def _rate(part: str, whole: str) -> str:
    """A ratio; null where the denominator is 0."""
    return f"(case when {whole} > 0 then {part} / cast({whole} as double) end)"


def _if(condition: str) -> str:
    return f"sum(case when {condition} then 1 else 0 end)"


def _finest(span: Range) -> str:
    """Counts and sums of the finest groups, one row for each group and kind of number."""
    outcomes = ", ".join(_if(f"outcome = '{each}'") for each in _OUTCOMES)
    more = "failures + (case when outcome = 'completed' then 1 else 0 end) > 1"
    ended, created = span.covers("ended"), span.covers("created")
    whose = "host, queue, name"
    return f"""
    select {whose}, {span.bucket("created")} as bucket, count(*) as created,
        {", ".join(f"0 as {name}" for name in _SUMS[1:])}
    from jobs where {created} group by {whose}, {span.bucket("created")}
    union all
    select {whose}, {span.bucket("ended")}, 0, {outcomes},
        {_if(f"outcome in ('completed', 'failed') and {more}")}, 0, 0, 0, 0
    from jobs where {ended} group by {whose}, {span.bucket("ended")}
    union all
    select {whose}, {span.bucket("ended")}, 0, {", ".join("0" for _ in _OUTCOMES)}, 0, count(*),
        {_if(f"outcome not in {LOST}")}, sum(coalesce(ended - started, 0)),
        sum(case when outcome <> 'completed' then coalesce(ended - started, 0) else 0 end)
    from attempts where {ended} group by {whose}, {span.bucket("ended")}"""


def _durations(span: Range) -> str:
    """Each duration, in the finest groups."""
    ended = f"where {span.covers('ended')} and"
    head = f"host, queue, name, {span.bucket('ended')} as bucket"
    return f"""
    select 'wait' as what, {head}, started - due as ms from jobs {ended} started is not null
        and due is not null
    union all
    select 'run', {head}, ended - started from jobs {ended} started is not null and outcome = 'completed'
    union all
    select 'total', {head}, ended - created from jobs {ended} outcome in ('completed', 'failed')"""


def changes(span: Range) -> str:
    """The change of each queue's backlog in each bucket."""
    taken = "coalesce(started, ended)"
    bucket = span.bucket(f"greatest(moment, {span.since})")
    return f"""
with moments as (
    select host, queue, least(due, {taken}) as moment, 1 as waiting, 0 as unfinished
    from jobs where due is not null
    union all select host, queue, {taken}, -1, 0 from jobs where due is not null
    union all select host, queue, created, 0, 1 from jobs
    union all select host, queue, ended, 0, -1 from jobs
)
select host, queue, {bucket} as bucket, sum(waiting) as waiting, sum(unfinished) as unfinished
from moments where moment < {span.until} group by host, queue, {bucket}"""


def backlog(table: numbers.Table) -> str:
    """`numbers.BACKLOG` or `numbers.BACKLOG_OVER_TIME`: ``changes`` added up over time."""
    keys = ", ".join(key.name for key in table.keys)
    whose = ", ".join(key.name for key in table.keys if key.name != "bucket")
    so_far = f"over ({f'partition by {whose} ' if whose else ''}order by bucket)"
    return f"""
with moved as (
    select {keys}, sum(waiting) as waiting, sum(unfinished) as unfinished from changes group by {keys}
)
select {keys}, cast(sum(waiting) {so_far} as bigint) as waiting,
    cast(sum(unfinished) {so_far} as bigint) as unfinished
from moved"""


def work(span: Range) -> str:
    """The work of each worker in each bucket, with its slots, and the start and end of the work within the
    bucket.  A job that ends as another starts makes room for it."""
    here = f"({span.covers('ended')} and ended >= bucket and ended < closes)"
    bad = _if(f"{here} and outcome not in {LOST}")
    return f"""
with worked as (
    select host, worker, started, ended, outcome, greatest(started, {span.since}) as begin_at,
        least(ended, {span.until - 1}) as end_at
    from attempts where started is not null and ended >= {span.since} and started < {span.until}
), steps as (
    select host, worker, moment, sum(change) as change from (
        select host, worker, started as moment, 1 as change from worked
        union all select host, worker, ended, -1 from worked
    ) moments group by host, worker, moment
), held as (
    select host, worker, sum(change) over (partition by host, worker order by moment) as held from steps
), most as (
    select host, worker, cast(greatest(max(held), 1) as bigint) as slots from held group by host, worker
), placed as (
    select *, {span.bucket("begin_at")} as first_bucket, {span.bucket("end_at")} as last_bucket from worked
), parts as (
    select *, first_bucket as bucket from placed where first_bucket = last_bucket
    union all
    select placed.*, buckets.start as bucket from placed join buckets
        on buckets.start >= first_bucket and buckets.start <= last_bucket
    where first_bucket <> last_bucket
), closed as (
    select *, {span.end("bucket")} as closes, least(ended, {span.until}) as stop from parts
), summed as (
    select host, worker, bucket, {_if(here)} as attempts, {bad} as failed_attempts,
        sum(greatest(least(stop, closes) - greatest(begin_at, bucket), 0)) as busy,
        min(begin_at) as begin_at, max(stop) as end_at
    from closed group by host, worker, bucket
)
select summed.*, slots from summed join most using (host, worker)"""


def workers() -> str:
    """`numbers.WORKERS`, from ``work``."""
    return f"""
with whole as (
    select host, worker, slots, sum(attempts) as attempts, sum(failed_attempts) as failed_attempts,
        sum(busy) as busy, max(end_at) - min(begin_at) as length
    from work group by host, worker, slots
)
select host, worker, attempts, failed_attempts, busy, slots, {_rate("busy", "slots * length")} as utilisation
from whole"""


def workers_over_time(span: Range) -> str:
    """`numbers.WORKERS_OVER_TIME`, from ``work``."""
    length = f"slots * {span.seconds('bucket')} * 1000"
    return f"""
select host, worker, bucket, attempts, failed_attempts, busy, slots, {_rate("busy", length)} as utilisation
from work"""


def failed(span: Range) -> str:
    """The failed attempts that `failures` counts, for `Engine.keep_with_patterns`."""
    return f"""
select host, queue, outcome, coalesce(error_type, '') as error_type,
    {span.bucket("ended")} as bucket, id, error, ended
from attempts where {span.covers("ended")} and outcome not in {LOST}"""


_KIND = ", ".join(key.name for key in numbers.FAILURE)


def failures() -> str:
    """`numbers.FAILURES` without the id of the group, from ``failed``."""
    return f"""
with placed as (
    select *, row_number() over (partition by {_KIND} order by ended desc, id desc, error desc) as place
    from failed
)
select {_KIND}, count(*) as attempts, count(distinct id) as jobs, min(ended) as first_at,
    max(ended) as last_at, max(case when place = 1 then id end) as example_job,
    max(case when place = 1 then error end) as example_error
from placed group by {_KIND}"""


def failures_over_time() -> str:
    """`numbers.FAILURES_OVER_TIME`, from ``failed``."""
    return f"select {_KIND}, bucket, count(*) as attempts from failed group by {_KIND}, bucket"


def slowest(span: Range) -> str:
    """`numbers.SLOWEST`."""
    return f"""
with placed as (
    select *, ended - started as run,
        row_number() over (partition by host, queue order by ended - started desc, id, ended) as place
    from jobs where {span.covers("ended")} and outcome = 'completed' and started is not null
)
select host, queue, id, name, worker, started as started_at, ended as ended_at, run
from placed where place <= {SLOWEST}"""
