"""The tables of a shard's file, as SQL and as a list.

A job touches the disk as little as possible: pushing inserts one row of ``jobs``, which contains the payload
and is not changed after that; an active job has a small row of ``locks``; the outcome is a row of
``completed`` or ``dead_letters``. (Updating the job's row at every step was measured at twice the cost, as a
row that grows splits pages, and each update rewrites the payload.) The view ``job_history`` shows all of it
as one row per job.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Literal

from . import statements as sql

CURRENT = 7
"""The number of this schema, as `pragma user_version`. Lower ones were used only before the first release."""

_SCHEMA = """
create table meta (key text primary key, value text not null) without rowid;

create table queues (
    id integer primary key,
    name text not null unique,
    created_at integer not null,
    completed integer not null default 0,  -- rows of completed and of dead_letters: counting them takes long
    failed integer not null default 0
);

-- What is set rather than pushed: pauses, limits, schedules, webhooks, ...; JSON, so that SQLite can look
-- into it.
create table records (
    kind text not null,
    key text not null,
    value text not null,
    primary key (kind, key)
) without rowid;

-- What a push brought, and what retries changed.  Times are epoch ms.
create table jobs (
    seq integer primary key,            -- order of arrival at this shard
    id text not null,                   -- has seq in it: see bunqueue.model.ids.seq_of_id
    queue_id integer not null,
    name text not null,
    priority integer not null,
    created_at integer not null,
    run_at integer not null,
    attempts integer not null default 0,  -- failures so far
    stalls integer not null default 0,
    error text,                         -- of the last failed attempt
    unique_key text,
    holds_key integer not null default 0,
    timeline blob,                      -- MessagePack; null while the times tell it
    lost_token text,                    -- of a lock that ran out; may still complete the job
    timed_out integer not null default 0,  -- the last attempt did: a late answer changes nothing
    options blob,                       -- MessagePack; null for the defaults
    extra blob,                         -- MessagePack; null for most: bunqueue.model.job.Extra
    own_id integer not null default 0,  -- the id does not tell the seq: a client chose it, or see transfer.py
    data blob not null,                 -- MessagePack, as it came
    run blob,                           -- MessagePack; null without steps: bunqueue.model.workflow.Run
    waits text                          -- 'signal' or 'children' while it is suspended
);
create index jobs_by_own_id on jobs (id) where own_id = 1;

-- Jobs below the number `live_from` in meta that may be live; those from there on all may.  So a start need
-- not look at all that have finished.
create table stragglers (seq integer primary key);

-- Active jobs.
create table locks (
    seq integer primary key,
    token text not null,                -- '' when pulled without an owner
    owner text not null,
    ttl integer not null,
    started_at integer not null,
    conn integer not null,              -- the router's number of the connection
    progress real not null default 0,
    progress_message text,
    renewed integer not null default 0,  -- at least once: it outlives its connection
    until integer not null default 0    -- as granted by a renewal with a duration
);

create table completed (
    queue_id integer not null,
    seq integer not null,
    started_at integer,
    finished_at integer not null,
    attempts integer not null,
    worker text not null,               -- '' when pulled without an owner
    progress real not null default 0,
    progress_message text,
    large integer not null default 0,   -- there is a row of large_outcomes
    result blob,                        -- null if it is in large_outcomes, or the job has none
    primary key (queue_id, seq)
) without rowid;

-- What would not fit beside its key in a page of completed: finding a neighbour would read all of it.
create table large_outcomes (
    seq integer primary key,
    timeline blob,
    result blob
);

create table dead_letters (
    seq integer primary key,
    queue_id integer not null,
    finished_at integer not null,
    started_at integer,
    attempts integer not null,
    stalls integer not null,
    worker text not null,
    reason text not null,
    error text,
    timeline blob,
    next_retry_at integer               -- when it is to be tried again by itself
);
create index dead_letters_by_age on dead_letters (queue_id, finished_at, seq);
create index dead_letters_by_arrival on dead_letters (queue_id, seq);
create index dead_letters_by_retry on dead_letters (queue_id, next_retry_at) where next_retry_at is not null;

-- Attempts that did not complete their job.
create table attempts (
    seq integer not null,
    number integer not null,
    worker text,
    started_at integer,
    ended_at integer not null,
    outcome text not null,
    error text,
    stack text,
    primary key (seq, number, ended_at)
) without rowid;

-- What else is known of failed attempts.  It is a table of its own because attempts cannot get more columns:
-- the log of a replicated shard has rows for that table as it was made.
create table attempt_notes (
    seq integer not null,
    number integer not null,
    ended_at integer not null,
    error_type text,                    -- the class of the error
    delay integer,                      -- ms until the next attempt, as they were chosen; null: there is none
    primary key (seq, number, ended_at)
) without rowid;

-- What workers say about a job: the last lines of each (number counts on).
create table job_logs (
    seq integer not null,
    number integer not null,
    at integer not null,
    level text not null,
    message text not null,
    primary key (seq, number)
) without rowid;

-- Finished jobs that say themselves how long they are kept; the others go as their queue or the server says.
create table expiries (
    seq integer primary key,
    queue_id integer not null,
    finished_at integer not null,
    at integer not null                 -- when the job is to be removed
);
create index expiries_by_time on expiries (at, seq);

-- What jobs have recorded, in the order in which each was first recorded.  Times are epoch ms.  Number 0 is
-- no step: its result is what the workflow has set as its state.
create table steps (
    seq integer not null,
    number integer not null,
    name text not null,
    kind text not null default 'step',
    status text not null default 'completed',
    attempts integer not null default 1,
    started_at integer not null,
    ended_at integer,                   -- null while it is open
    until integer,                      -- when it is to end, or to be tried again
    worker text,
    arguments text,                     -- a fingerprint
    signal text,                        -- the name that it waits for, or has waited for
    key text,                           -- the key of broadcasts, if it waits for these, too
    source text,                        -- the id of the broadcast that it got
    child text,                         -- the id of the job that it has started
    child_queue text,
    undo integer not null default 0,    -- it can be undone
    error text,
    cursor blob,                        -- MessagePack
    input blob,                         -- MessagePack: the child, until its shard has it
    result blob,                        -- MessagePack
    primary key (seq, number)
);
create index steps_open on steps (seq) where ended_at is null;
create index steps_by_key on steps (key, signal) where key is not null and ended_at is null;
create index steps_by_child on steps (child) where child is not null and ended_at is null;

-- Signals to workflows.  Those that were taken stay, without their data, as they may be sent again.
create table signals (
    seq integer not null,
    number integer not null,
    name text not null,
    at integer not null,
    expires_at integer,
    signal_id text,
    taken_by integer,                   -- the number of a step
    data blob,                          -- MessagePack
    primary key (seq, number)
);

-- Signals to all that wait for a key, or will; every shard has all of them.
create table broadcasts (
    id text primary key,
    name text not null,
    key text not null,
    at integer not null,
    expires_at integer not null,
    delivered integer not null default 0,  -- to all that waited for it when it came
    data blob not null
);
create index broadcasts_by_key on broadcasts (key, name, at);

-- What happened, in the order of the commits; for analytics and streaming.  A row holds what one batch
-- did (at most 1000 events), as a row for each event would cost more than storing the job.  The events of a
-- row have the numbers first_seq, first_seq + 1, ... first_seq + count - 1; numbers never come again.
-- The payload is a MessagePack list of lists [kind, queue id, job id ("" when it is about the queue), and for
-- some kinds a map of fields]; null stands for an event that was forgotten on request.  Kinds are indexes of
-- bunqueue.model.events.NAMES.  shardproc.storage.event_log.read reads it.
-- `pushed` has the pushes with idempotency keys: a MessagePack list of [queue and key with a blank between,
-- answer]; null for most.  They are read for some minutes: shardproc.engine.handlers.idempotency.
create table events (
    first_seq integer primary key,
    at integer not null,
    count integer not null,
    payload blob not null,
    pushed blob
);

-- What a search need not look at, for each block of 1024 numbers of jobs (block = seq / 1024): see
-- shardproc.storage.search.  Both tables follow from the others; a block without a row is looked at.
create table search_blocks (
    block integer primary key,
    since integer not null,             -- created_at of its jobs: the first
    until integer not null,             -- and the last
    words blob                          -- four bytes for each name, tag and group of its jobs; null: too many
);

-- When jobs of a block finished.
create table search_finishes (
    block integer not null,
    since integer not null,
    until integer not null,
    primary key (block, since)
) without rowid;

create view job_history as
select jobs.id, queues.name as queue, jobs.name, jobs.priority,
       case when completed.seq is not null then 'completed'
            when dead_letters.reason in ('cancelled', 'stuck') then dead_letters.reason
            when dead_letters.seq is not null then 'failed'
            when locks.seq is not null then 'active'
            when jobs.waits is not null then 'waiting-' || jobs.waits
            when jobs.run_at > (julianday('now') - 2440587.5) * 86400000 then 'delayed'
            else 'waiting' end as state,
       jobs.created_at, jobs.run_at,
       coalesce(completed.started_at, dead_letters.started_at, locks.started_at) as started_at,
       coalesce(completed.finished_at, dead_letters.finished_at) as finished_at,
       coalesce(completed.attempts, dead_letters.attempts, jobs.attempts) as attempts,
       nullif(coalesce(completed.worker, dead_letters.worker, locks.owner), '') as worker,
       dead_letters.reason as failure_reason,
       coalesce(dead_letters.error, jobs.error) as error,
       (select error_type from attempt_notes where attempt_notes.seq = jobs.seq
        order by ended_at desc limit 1) as error_type
from jobs
join queues on queues.id = jobs.queue_id
left join locks on locks.seq = jobs.seq
left join completed on completed.queue_id = jobs.queue_id and completed.seq = jobs.seq
left join dead_letters on dead_letters.seq = jobs.seq;

-- Schedules.
create view cron as
select key as name,
       json_extract(value, '$.queue') as queue,
       json_extract(value, '$.jobName') as job_name,
       json_extract(value, '$.schedule') as schedule,
       json_extract(value, '$.repeatEvery') as repeat_every,
       json_extract(value, '$.timezone') as timezone,
       json_extract(value, '$.nextRun') as next_run,
       coalesce(json_extract(value, '$.executions'), 0) as executions,
       json_extract(value, '$.maxLimit') as max_limit,
       coalesce(json_extract(value, '$.priority'), 0) as priority,
       json_extract(value, '$.app') as app,
       coalesce(json_extract(value, '$.paused'), 0) as paused,
       coalesce(json_extract(value, '$.missed'), 0) as missed,
       json_extract(value, '$.lastRun.at') as last_run,
       json_extract(value, '$.lastRun.jobId') as last_job,
       json_extract(value, '$.lastRun.outcome') as last_outcome
from records
where kind = 'cron';
"""


@dataclass(frozen=True, slots=True)
class Table:
    """A table, and what code that handles all tables has to know of it."""

    name: str
    key: tuple[str, ...]  # the primary key
    of: Literal["job", "queue", "shard"]
    """What its rows belong to. Rows of a job have its number in `seq`, and move with it to another file."""
    delete: str = ""  # deletes the rows that a range of finished jobs has; "": finished jobs have none
    shift: str = ""  # shifts the times of some rows; "": it has none, or they are not shifted in the file
    is_rare: bool = False  # most files have no rows of it, so nothing is deleted until there is one
    is_derived: bool = False  # follows from other tables, so it is not copied but made again

    @property
    def is_single(self) -> bool:
        """Whether a job has at most one row."""
        return self.key[-1] == "seq"


TABLES = (
    Table("meta", ("key",), "shard"),
    Table("queues", ("id",), "queue"),
    Table("records", ("kind", "key"), "shard"),
    Table("jobs", ("seq",), "job", sql.DELETE_JOBS, sql.MOVE_CREATED),
    Table("locks", ("seq",), "job"),
    Table("completed", ("queue_id", "seq"), "job", sql.PURGE_COMPLETED, sql.MOVE_COMPLETED),
    Table("large_outcomes", ("seq",), "job", sql.PURGE_LARGE),
    Table("dead_letters", ("seq",), "job", sql.PURGE_DEAD, sql.MOVE_DEAD_LETTERS),
    Table("attempts", ("seq", "number", "ended_at"), "job", sql.DELETE_ATTEMPTS, sql.MOVE_ATTEMPTS),
    Table("attempt_notes", ("seq", "number", "ended_at"), "job", sql.DELETE_NOTES, sql.MOVE_NOTES),
    Table("job_logs", ("seq", "number"), "job", sql.DELETE_LOGS, sql.MOVE_LOGS),
    Table("steps", ("seq", "number"), "job", sql.DELETE_STEPS, sql.MOVE_STEPS, is_rare=True),
    Table("signals", ("seq", "number"), "job", sql.DELETE_SIGNALS, sql.MOVE_SIGNALS, is_rare=True),
    Table("expiries", ("seq",), "job", sql.DELETE_EXPIRIES, sql.MOVE_EXPIRIES, is_rare=True),
    Table("broadcasts", ("id",), "shard", shift=sql.MOVE_BROADCASTS),
    Table("events", ("first_seq",), "shard", shift=sql.MOVE_EVENTS),
    Table("stragglers", ("seq",), "shard", is_derived=True),
    Table("search_blocks", ("block",), "shard", is_derived=True),
    Table("search_finishes", ("block", "since"), "shard", is_derived=True),
)
"""All tables. What copies, repairs, deletes or shifts rows takes its list from here."""

OF_JOBS = tuple(table for table in TABLES if table.of == "job")
"""Those with rows of jobs; the jobs' own first."""


class WrongSchema(Exception):
    """The file was written by a version with another schema."""


def version_of(connection: sqlite3.Connection) -> int:
    """CURRENT; or 0 for a file that has no tables yet. WrongSchema for any other."""
    version: int = connection.execute("pragma user_version").fetchone()[0]
    if version > CURRENT:
        raise WrongSchema(
            f"the data was written by a newer version (schema {version}, this one knows {CURRENT}):"
            " install that version or restore a backup"
        )
    if 0 < version < CURRENT:
        raise WrongSchema(
            f"the data was written by a version before 0.1.0 (schema {version}, this one knows {CURRENT}):"
            " finish its jobs with that version, or begin with a new data folder"
        )
    return version


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a file to the current schema: a new one gets its tables. WrongSchema if it has another one."""
    if version_of(connection) < CURRENT:
        done = f"pragma user_version = {CURRENT};"
        connection.executescript(f"begin immediate;\n{_SCHEMA}\n{done}\ncommit;")
