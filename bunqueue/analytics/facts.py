"""What is known of each job and each attempt, as two narrow tables: all numbers come from them.

Jobs come from the table of jobs.  Those that are gone (removed on completion, expired, drained) come from the
event log, as far as that goes back; their names and workers are not known any more.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from bunqueue.analytics.times import ms_of
from bunqueue.model.dead_letters import CANCELLED, INTERRUPTED, REASONS

LOST = ("interrupted", "cancelled", "completed")  # outcomes of attempts that are no failures
_NOT_COMPLETED = (*REASONS, CANCELLED, INTERRUPTED)
JOB = ["host", "queue", "name", "id"]

# What happened to a job, of all events: enough to tell its life.
_STARTS = ("pushed", "ready", "retried", "revived", "released", "waiting")  # then it may be taken
_ENDS = ("completed", "failed", "stalled", "released", "interrupted")  # an attempt is over
_GONE = ("removed", "dropped")
_KINDS = sorted({*_STARTS, *_ENDS, *_GONE, "pulled"})


class Source(NamedTuple):
    """What is read: tables with the columns of the Spark source ``bunqueue``, jobs with `JOB_COLUMNS`.

    ``keeps_gone``: there may be rows of jobs that are gone from their server by now.
    """

    jobs: DataFrame
    attempts: DataFrame
    events: DataFrame
    keeps_gone: bool = False


class Facts(NamedTuple):
    """Times in epoch ms.  ``jobs``: host, queue, name, id, outcome (null: it has not ended), created, due,
    started, ended, failures, worker.  ``attempts``: host, queue, name, id, worker, started, ended, outcome,
    error.  ``events``: host, shard, seq, at, and more.
    """

    jobs: DataFrame
    attempts: DataFrame
    events: DataFrame
    kept: tuple[DataFrame, ...]

    def release(self) -> None:
        """Let go of what is kept in memory or on disk."""
        for frame in self.kept:
            frame.unpersist()


JOB_COLUMNS = (
    "host, shard, id, queue, name, state, created_at, run_at, started_at, finished_at, attempts, worker,"
    " depends_on"
)
ATTEMPT_COLUMNS = "host, job_id, queue, name, worker, started_at, ended_at, outcome, error"
EVENT_COLUMNS = "host, shard, seq, at, kind, queue, job_id, error, terminal, fields"


def facts(source: Source, until: int) -> Facts:
    """All jobs that were created before a moment, as they were then, and their attempts that had ended.

    ``until`` is in epoch ms.  The tables are read once: what is needed again is kept until `Facts.release`.
    """
    events = source.events.where(F.col("kind").isin(*_KINDS) & F.col("job_id").isNotNull())
    events = events.withColumn("at", ms_of(F.col("at"))).where(F.col("at") < until).persist()
    lives = _lives(events).persist()
    stored = _stored_jobs(source.jobs, events), _failed_attempts(source.attempts)
    gone = _gone_jobs(lives), _gone_attempts(lives)
    again: tuple[DataFrame, ...] = ()
    if source.keeps_gone:
        again = stored = stored[0].persist(), stored[1].persist()
        gone = _unknown(gone[0], stored[0]), _unknown(gone[1], stored[1])
    ended = F.col("ended") < until
    jobs = (
        stored[0]
        .unionByName(gone[0])
        .where(F.col("created") < until)
        .withColumns({"outcome": F.when(ended, F.col("outcome")), "ended": F.when(ended, F.col("ended"))})
        .persist()
    )
    failed = stored[1].unionByName(gone[1]).where(F.col("ended") < until).persist()
    attempts = failed.unionByName(_completing(jobs))
    return Facts(jobs, attempts, events, (jobs, failed, *again, lives, events))


def _unknown(gone: DataFrame, stored: DataFrame) -> DataFrame:
    """Those that are not stored as well."""
    key = ["host", "id", "ended"]
    return gone.join(stored.select(*key), key, "left_anti")


def _stored_jobs(jobs: DataFrame, events: DataFrame) -> DataFrame:
    """Those of the table of jobs."""
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
    ready = events.where(F.col("kind") == "ready").groupBy("host", F.col("job_id").alias("id"))
    freed = ready.agg(F.max("at").alias("freed"))
    oldest = events.groupBy("host", "shard").agg(F.min("at").alias("oldest"))
    dependents = flat.where("depends").join(freed, ["host", "id"], "left")
    dependents = dependents.join(F.broadcast(oldest), ["host", "shard"], "left")
    dependents = dependents.withColumn("due", _due_of_dependent())
    both = flat.where("not depends").unionByName(dependents.select(flat.columns))
    return both.drop("shard", "depends")


def _due_of_dependent() -> Column:
    """Of a job that depended on others: when the last of them had completed.  Null when the event log does
    not go back to that."""
    freed, due = F.col("freed"), F.col("due")
    known = F.when(F.col("created") >= F.col("oldest"), due)
    return F.when(freed.isNotNull(), F.when(due.isNotNull(), F.greatest(due, freed))).otherwise(known)


def _lives(events: DataFrame) -> DataFrame:
    """The events of jobs that are gone, with the number of the life that each belongs to, as an id may be
    used again; and when the job was pulled last before, and last let go."""
    gone = events.where(F.col("kind").isin(*_GONE)).select("host", "job_id").distinct()
    mine = events.join(gone, ["host", "job_id"], "left_semi")
    order = Window.partitionBy("host", "shard", "job_id").orderBy("seq")
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    kind = F.col("kind")
    numbered = mine.withColumn("life", F.sum(F.when(kind == "pushed", 1).otherwise(0)).over(so_far))
    pulled = F.when(kind == "pulled", F.col("seq"))
    let_go = F.when(kind.isin(*_ENDS), F.col("seq"))
    return (
        numbered.withColumn("pulled", F.last(pulled, True).over(before))
        .withColumn("pulled_at", F.last(F.when(kind == "pulled", F.col("at")), True).over(before))
        .withColumn("let_go", F.last(let_go, True).over(before))
    )


def _at(*kinds: str) -> Column:
    """The last moment at which one of these happened."""
    return F.max(F.when(F.col("kind").isin(*kinds), F.col("at")))


def _says(field: str, value: str) -> Column:
    return F.get_json_object("fields", f"$.{field}") == value


def _gone_jobs(lives: DataFrame) -> DataFrame:
    """Jobs that are gone, as the event log tells them."""
    final = (F.col("kind") == "failed") & F.col("terminal")
    failed = (F.col("kind") == "stalled") | ((F.col("kind") == "failed") & _is_attempt())
    found = lives.groupBy("host", "shard", "job_id", "life").agg(
        F.max("queue").alias("queue"),
        F.min(F.when(F.col("kind") == "pushed", F.col("at"))).alias("created"),
        _at(*_STARTS).alias("due"),
        _at("pulled").alias("started"),
        _at("completed").alias("completed"),
        F.max(F.when(final, F.col("at"))).alias("failed"),
        F.max(F.when(final & _says("reason", "cancelled"), F.col("at"))).alias("cancelled"),
        _at("revived").alias("revived"),
        _at("removed").alias("removed"),
        F.max(F.when(_says("reason", "expired"), F.col("at"))).alias("expired"),
        _at(*_GONE).alias("gone"),
        F.sum(F.when(failed, 1).otherwise(0)).cast("int").alias("failures"),
    )
    decided = F.greatest("completed", "failed")
    stands = decided.isNotNull() & (decided >= F.coalesce("revived", F.lit(0)))
    outcome = (
        F.when(stands & (F.col("completed") == decided), "completed")
        .when(stands & (F.col("cancelled") == decided), "cancelled")
        .when(stands, "failed")
        .when(F.col("expired").isNotNull(), "expired")
        .when(F.col("removed").isNotNull(), "cancelled")
        .otherwise("removed")
    )
    return found.where("gone is not null and created is not null").select(
        "host",
        "queue",
        F.lit("").alias("name"),
        F.col("job_id").alias("id"),
        outcome.alias("outcome"),
        "created",
        F.when(stands | F.col("expired").isNotNull(), F.col("due")).alias("due"),
        F.when(stands, F.col("started")).alias("started"),
        F.when(stands, decided).otherwise(F.col("gone")).alias("ended"),
        "failures",
        F.lit("").alias("worker"),
    )


def _is_attempt() -> Column:
    """Whether an event ends an attempt: the job was pulled, and not let go since."""
    return F.col("pulled").isNotNull() & (F.col("pulled") > F.coalesce("let_go", F.lit(-1)))


def _gone_attempts(lives: DataFrame) -> DataFrame:
    """Attempts of jobs that are gone, other than those that completed them."""
    ended = F.col("kind").isin("failed", "stalled") & _is_attempt()
    cancelled = _says("reason", "cancelled")
    outcome = F.when(F.col("kind") == "stalled", "stalled").when(cancelled, "cancelled")
    return lives.where(ended).select(
        "host",
        "queue",
        F.lit("").alias("name"),
        F.col("job_id").alias("id"),
        F.lit("").alias("worker"),
        F.col("pulled_at").alias("started"),
        F.col("at").alias("ended"),
        outcome.otherwise("failed").alias("outcome"),
        "error",
    )


def _failed_attempts(attempts: DataFrame) -> DataFrame:
    """Those of the table of attempts that did not complete their job.  Their outcomes are named, as that is
    what shards can be asked for."""
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
