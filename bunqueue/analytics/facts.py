"""All jobs and attempts as two narrow tables, from which all numbers are computed.

Jobs come from the table of jobs.  Jobs that are gone (removed on completion, expired, drained) come from the
event log: see `bunqueue.analytics.lives`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from bunqueue.analytics import lives
from bunqueue.analytics.times import ms_of
from bunqueue.model.dead_letters import CANCELLED, INTERRUPTED, REASONS

LOST = ("interrupted", "cancelled", "completed")  # outcomes of attempts that are not failures
_NOT_COMPLETED = (*REASONS, CANCELLED, INTERRUPTED)
JOB = ["host", "queue", "name", "id"]
_BACK = ("ready", "released", "waiting")  # after these a job may be taken, whatever its run time is
_INNER = ("shard", "depends")
_FEW = 100_000  # events; a copy of this many may be sent to every task


class Begin(NamedTuple):
    """The number and the time (epoch ms) of the oldest event in the log of a shard."""

    host: str
    shard: int
    seq: int
    at: int


class Source(NamedTuple):
    """The input: tables with the columns of the Spark source ``bunqueue``, jobs with `JOB_COLUMNS`.

    ``events`` returns the events of some kinds, ``begins`` the starts of their logs.  ``keeps_gone``: there
    may be rows of jobs that are no longer on their server.
    """

    jobs: DataFrame
    attempts: DataFrame
    events: Callable[[Sequence[str]], DataFrame]
    begins: Callable[[], Iterable[Begin]]
    keeps_gone: bool = False


class Log(NamedTuple):
    """The contents of the event logs: how many jobs left (``gone``), and how many became free (``back``)."""

    begins: tuple[Begin, ...]
    gone: int
    back: int


class Facts(NamedTuple):
    """Times in epoch ms.  ``jobs``: host, queue, name, id, outcome (null: the job has not ended), created,
    due, started, ended, failures, worker.  ``attempts``: host, queue, name, id, worker, started, ended,
    outcome, error."""

    jobs: DataFrame
    attempts: DataFrame
    log: Log
    kept: tuple[DataFrame, ...]

    def release(self) -> None:
        """Release everything that is kept in memory or on disk."""
        for frame in self.kept:
            frame.unpersist()


JOB_COLUMNS = (
    "host, shard, id, queue, name, state, created_at, run_at, started_at, finished_at, attempts, worker,"
    " depends_on"
)
ATTEMPT_COLUMNS = "host, job_id, queue, name, worker, started_at, ended_at, outcome, error"
EVENT_COLUMNS = "host, shard, seq, at, kind, queue, job_id, error, terminal, fields"


def facts(source: Source, until: int) -> Facts:
    """All jobs that were created before a moment, in their state at that moment, and those of their attempts
    that had ended.

    ``until`` is in epoch ms.  The tables are read once: data that is needed again is kept until
    `Facts.release`.
    """

    def events(kinds: Sequence[str]) -> DataFrame:
        found = source.events(kinds).withColumn("at", ms_of(F.col("at")))
        return found.where(F.col("at") < until)

    # A source that keeps rows of gone jobs has those of purged jobs, as far as it had read them before.
    gone = list(lives.GONE) if source.keeps_gone else [*lives.GONE, lives.PURGED]
    moves = events([*gone, *_BACK]).select("host", "job_id", "kind", "at").persist()
    log = summarize(moves, source.begins())
    kept: tuple[DataFrame, ...] = (moves,)
    jobs, failed = _stored_jobs(source.jobs, moves, log), _failed_attempts(source.attempts)
    if log.gone:
        logged = events([*{*lives.KINDS, *gone}]).persist()
        known = lives.lives_of(lives.purges_logged(logged)).persist()
        kept += logged, known
        left = lives.removed_jobs(known), lives.removed_attempts(known)
        if source.keeps_gone:
            jobs, failed = jobs.persist(), failed.persist()
            kept += jobs, failed
            left = _unknown(left[0], jobs), _unknown(left[1], failed)
        jobs, failed = jobs.unionByName(left[0]), failed.unionByName(left[1])
    ended = F.col("ended") < until
    then = {"outcome": F.when(ended, F.col("outcome")), "ended": F.when(ended, F.col("ended"))}
    jobs = jobs.where(F.col("created") < until).withColumns(then).persist()
    failed = failed.where(F.col("ended") < until).persist()
    return Facts(jobs, failed.unionByName(_completing(jobs)), log, (jobs, failed, *kept))


def summarize(moves: DataFrame, begins: Iterable[Begin]) -> Log:
    """How much has to be looked up in the event logs.  In most logs, that is little or nothing."""
    kind = F.col("kind")
    counts = moves.agg(F.count_if(~kind.isin(*_BACK)), F.count_if(kind.isin(*_BACK))).first()
    gone, back = counts if counts is not None else (0, 0)
    return Log(tuple(begins), gone, back)


def _unknown(gone: DataFrame, stored: DataFrame) -> DataFrame:
    """Jobs in the event log that are not stored as well."""
    key = ["host", "id", "ended"]
    return gone.join(stored.select(*key), key, "left_anti")


def _stored_jobs(jobs: DataFrame, moves: DataFrame, log: Log) -> DataFrame:
    """Jobs from the table of jobs."""
    flat = jobs.select(
        "host",
        "shard",
        "queue",
        "name",
        "id",
        F.when(F.col("state").isin("completed", "failed", "cancelled"), F.col("state")).alias("outcome"),
        ms_of(F.col("created_at")).alias("created"),
        F.when(F.col("state") != "waiting-children", ms_of(F.col("run_at"))).alias("due"),
        ms_of(F.col("started_at")).alias("started"),
        ms_of(F.col("finished_at")).alias("ended"),
        F.col("attempts").alias("failures"),
        F.coalesce("worker", F.lit("")).alias("worker"),
        (F.size(F.coalesce("depends_on", F.array())) > 0).alias("depends"),
    )
    never = F.lit(None).cast("bigint")
    known = flat.withColumns({"freed": never, "back": never})
    if log.back:
        known = flat.join(_back(moves, log), ["host", "id"], "left")
    due = F.when(F.col("depends"), _due_of_dependent(_oldest(log.begins))).otherwise(F.col("due"))
    return known.withColumn("due", _due_again(due)).select(
        *(name for name in flat.columns if name not in _INNER)
    )


def _back(moves: DataFrame, log: Log) -> DataFrame:
    """By host and id: when the last job that a job depended on had completed (``freed``), and when a worker
    last had to give it up (``back``)."""
    moments = moves.where(F.col("kind").isin(*_BACK)).groupBy("host", F.col("job_id").alias("id"))
    ready = F.col("kind") == "ready"
    found = moments.agg(
        F.max(F.when(ready, F.col("at"))).alias("freed"), F.max(F.when(~ready, F.col("at"))).alias("back")
    )
    return F.broadcast(found) if log.back <= _FEW else found


def _due_again(due: Column) -> Column:
    """When a job that a worker returned was due again.  It was not due before that."""
    back = F.col("back")
    taken = F.coalesce("started", "ended")  # before that, it belonged to another job with this id
    return F.when(due.isNotNull() & (back <= F.coalesce(taken, back)), F.greatest(due, back)).otherwise(due)


def _oldest(begins: Iterable[Begin]) -> Column:
    """The time of the oldest event in the log of a job's shard."""
    at = {f"{each.shard} {each.host}": each.at for each in begins}
    known = F.create_map(*(F.lit(value) for value in chain.from_iterable(at.items())))
    return F.try_element_at(known.cast("map<string, bigint>"), F.concat_ws(" ", "shard", "host"))


def _due_of_dependent(oldest: Column) -> Column:
    """For a job that depended on others: when the last of them had completed.  Null when the event log does
    not go back that far."""
    freed, due = F.col("freed"), F.col("due")
    known = F.when(F.col("created") >= oldest, due)
    return F.when(freed.isNotNull(), F.when(due.isNotNull(), F.greatest(due, freed))).otherwise(known)


def _failed_attempts(attempts: DataFrame) -> DataFrame:
    """The attempts that did not complete their job.  Their outcomes are named, because that is what shards
    can be asked for."""
    return attempts.where(F.col("outcome").isin(*_NOT_COMPLETED)).select(
        "host",
        "queue",
        "name",
        F.col("job_id").alias("id"),
        F.coalesce("worker", F.lit("")).alias("worker"),
        ms_of(F.col("started_at")).alias("started"),
        ms_of(F.col("ended_at")).alias("ended"),
        "outcome",
        "error",
    )


def _completing(jobs: DataFrame) -> DataFrame:
    """The attempts that completed jobs."""
    done = jobs.where((F.col("outcome") == "completed") & F.col("started").isNotNull())
    error = F.lit(None).cast("string").alias("error")
    return done.select(*JOB, "worker", "started", "ended", "outcome", error)
