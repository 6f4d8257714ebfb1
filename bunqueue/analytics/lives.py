"""Jobs that are gone, and their attempts, reconstructed from the event log as far as it goes back.

Their names and workers are no longer known.
"""

from __future__ import annotations

from bunqueue.analytics.engine import Engine

# The kinds of events that are enough to reconstruct a job's life.
STARTS = ("pushed", "ready", "retried", "revived", "released", "waiting")  # the job may be taken
ENDS = ("completed", "failed", "stalled", "released")  # an attempt is over
GONE = ("removed", "dropped")
PURGED = "purged"  # finished jobs of a queue, many in one event
KINDS = sorted({*STARTS, *ENDS, *GONE, "pulled"})


def make(engine: Engine) -> None:
    """Make ``removed_jobs`` and ``removed_attempts`` from the events ``logged`` and ``undone``, with the
    columns that `bunqueue.analytics.facts` gives stored ones."""
    engine.view("purges_logged", _PURGES_LOGGED)
    engine.keep("lives", _LIVES)
    engine.view("removed_jobs", _REMOVED_JOBS)
    engine.view("removed_attempts", _REMOVED_ATTEMPTS)


def _in(kinds: tuple[str, ...]) -> str:
    return "({})".format(", ".join(f"'{kind}'" for kind in kinds))


_COLUMNS = "host, shard, seq, moment, kind, queue, job_id, error, terminal, fields"


# The events, with one event of the kind ``purged`` for each purged job, if the log still has the job's start.
# Ids that contain the number of their job are purged by it, others by their text.
_PURGES_LOGGED = f"""
with numbered as (
    select host, shard, seq, moment, kind, queue, error, terminal, fields,
        explode(from_json(get_json_object(fields, '$.seqs'), 'array<string>')) as number
    from logged where kind = '{PURGED}'
)
select {_COLUMNS} from logged where kind <> '{PURGED}'
union all
select host, shard, seq, moment, kind, queue,
    explode(from_json(get_json_object(fields, '$.ids'), 'array<string>')) as job_id, error, terminal, fields
from logged where kind = '{PURGED}'
union all
select n.host, n.shard, n.seq, n.moment, n.kind, n.queue, p.job_id, n.error, n.terminal, n.fields
from numbered n join logged p on p.kind = 'pushed'
    and length(p.job_id) = 36 and substring(p.job_id, 15, 1) = '7'
    and p.host = n.host and p.shard = n.shard and p.queue = n.queue
    and right(p.job_id, 12) = lpad(lower(hex(cast(n.number as bigint))), 12, '0')"""

# The events of jobs that are gone.  Each has the number of its life, because an id may be used again, and the
# numbers and times at which the job was last pulled and last given up before it.
_LIVES = f"""
with gone as (select distinct host, job_id from purges_logged where kind in {_in((*GONE, PURGED))}),
mine as (select purges_logged.* from purges_logged semi join gone using (host, job_id))
select mine.*, undone.id is not null as is_undo,
    sum(case when kind = 'pushed' then 1 else 0 end) over so_far as life,
    max(case when kind = 'pulled' then seq end) over earlier as pulled,
    max(case when kind = 'pulled' then moment end) over earlier as pulled_at,
    max(case when kind in {_in(ENDS)} then seq end) over earlier as let_go
from mine left join undone on undone.host = mine.host and undone.id = mine.job_id
    and mine.moment > undone.since and mine.moment <= undone.until
window so_far as (
    partition by mine.host, shard, job_id order by seq rows between unbounded preceding and current row
), earlier as (
    partition by mine.host, shard, job_id order by seq rows between unbounded preceding and 1 preceding
)"""

# An event ends an attempt if the job was pulled, and has not been given up since; an undo is no attempt.
_IS_ATTEMPT = "(pulled is not null and pulled > coalesce(let_go, -1) and not is_undo)"
_REASON = "get_json_object(fields, '$.reason')"
_FINAL = "(kind = 'completed' or (kind = 'failed' and terminal))"
_STANDS = "(last_seq is not null and last_seq > coalesce(revived, 0))"

# Ends and revivals are compared by number: a job may be revived in the very millisecond of its failure.
_REMOVED_JOBS = f"""
with ends as (
    select host, shard, job_id, life, max(queue) as queue,
        min(case when kind = 'pushed' then moment end) as created,
        max(case when kind in {_in(STARTS)} then moment end) as due,
        max(case when kind = 'pulled' then moment end) as started,
        max(case when {_FINAL} then seq end) as last_seq,
        max_by(case when {_FINAL} then moment end, case when {_FINAL} then seq end) as last_at,
        max_by(case when {_FINAL} then case when {_REASON} = 'cancelled' then 'cancelled' else kind end end,
            case when {_FINAL} then seq end) as last_outcome,
        max(case when kind = 'revived' then seq end) as revived,
        max(case when kind = 'removed' then moment end) as removed,
        max(case when {_REASON} = 'expired' then moment end) as expired,
        max(case when kind in {_in(GONE)} then moment end) as gone,
        max(case when kind = '{PURGED}' then moment end) as purged,
        cast(sum(case when kind in ('failed', 'stalled') and {_IS_ATTEMPT} then 1 else 0 end)
            as bigint) as failures
    from lives group by host, shard, job_id, life
)
select host, queue, '' as name, job_id as id,
    case when {_STANDS} then last_outcome when expired is not null then 'expired'
        when removed is not null then 'cancelled' else 'removed' end as outcome,
    created,
    case when {_STANDS} or expired is not null then due end as due,
    case when {_STANDS} then started end as started,
    case when {_STANDS} then last_at else gone end as ended,
    failures, '' as worker
from ends where (gone is not null or (purged is not null and {_STANDS})) and created is not null"""

# Except those that completed their job.
_REMOVED_ATTEMPTS = f"""
select host, queue, '' as name, job_id as id, '' as worker, pulled_at as started, moment as ended,
    case when kind = 'stalled' then 'stalled' when {_REASON} = 'cancelled' then 'cancelled' else 'failed' end
        as outcome, cast(null as string) as error_type, error
from lives where kind in ('failed', 'stalled') and {_IS_ATTEMPT}"""
