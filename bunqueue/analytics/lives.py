"""Jobs that are gone, and their attempts, reconstructed from the event log as far as it goes back.

Their names and workers are no longer known.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

# The kinds of events that are enough to reconstruct a job's life.
STARTS = ("pushed", "ready", "retried", "revived", "released", "waiting")  # the job may be taken
ENDS = ("completed", "failed", "stalled", "released")  # an attempt is over
GONE = ("removed", "dropped")
PURGED = "purged"  # finished jobs of a queue, many in one event
KINDS = sorted({*STARTS, *ENDS, *GONE, "pulled"})
_ID = "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"  # an id that contains its number


def purges_logged(events: DataFrame) -> DataFrame:
    """The events, with one event of the kind ``purged`` for each purged job, if the log still has the job's
    start."""
    fields = F.from_json("fields", "seqs array<bigint>, ids array<string>")
    purged = events.where(F.col("kind") == PURGED).withColumn("purged", fields)
    named = purged.withColumn("job_id", F.explode("purged.ids")).drop("purged")
    number = F.conv(F.substring("job_id", -12, 12), 16, 10).cast("bigint")
    pushed = events.where((F.col("kind") == "pushed") & F.col("job_id").rlike(f"^{_ID}$"))
    ids = pushed.select("host", "shard", "queue", "job_id", number.alias("number"))
    numbers = purged.withColumn("number", F.explode("purged.seqs")).drop("job_id", "purged")
    by_number = numbers.join(ids, ["host", "shard", "queue", "number"]).drop("number")
    return events.where(F.col("kind") != PURGED).unionByName(named).unionByName(by_number)


def lives_of(events: DataFrame) -> DataFrame:
    """The events of jobs that are gone. Each has the number of its life, because an id may be used again, and
    the times at which the job was last pulled and last given up before it."""
    gone = events.where(F.col("kind").isin(*GONE, PURGED)).select("host", "job_id").distinct()
    mine = events.join(gone, ["host", "job_id"], "left_semi")
    order = Window.partitionBy("host", "shard", "job_id").orderBy("seq")
    so_far = order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    before = order.rowsBetween(Window.unboundedPreceding, -1)
    kind = F.col("kind")
    numbered = mine.withColumn("life", F.sum(F.when(kind == "pushed", 1).otherwise(0)).over(so_far))
    pulled = F.when(kind == "pulled", F.col("seq"))
    let_go = F.when(kind.isin(*ENDS), F.col("seq"))
    return (
        numbered.withColumn("pulled", F.last(pulled, True).over(before))
        .withColumn("pulled_at", F.last(F.when(kind == "pulled", F.col("at")), True).over(before))
        .withColumn("let_go", F.last(let_go, True).over(before))
    )


def _at(*kinds: str) -> Column:
    """The last moment of an event of these kinds."""
    return F.max(F.when(F.col("kind").isin(*kinds), F.col("at")))


def _field_is(field: str, value: str) -> Column:
    return F.get_json_object("fields", f"$.{field}") == value


def removed_jobs(lives: DataFrame) -> DataFrame:
    """Jobs that are gone, from the event log."""
    kind = F.col("kind")
    final = (kind == "completed") | ((kind == "failed") & F.col("terminal"))
    how = F.when(_field_is("reason", "cancelled"), "cancelled").otherwise(kind)
    failed = (kind == "stalled") | ((kind == "failed") & _is_attempt())
    found = lives.groupBy("host", "shard", "job_id", "life").agg(
        F.max("queue").alias("queue"),
        F.min(F.when(F.col("kind") == "pushed", F.col("at"))).alias("created"),
        _at(*STARTS).alias("due"),
        _at("pulled").alias("started"),
        F.max(F.when(final, F.struct("seq", "at", how.alias("outcome")))).alias("last"),
        F.max(F.when(kind == "revived", F.col("seq"))).alias("revived"),
        _at("removed").alias("removed"),
        F.max(F.when(_field_is("reason", "expired"), F.col("at"))).alias("expired"),
        _at(*GONE).alias("gone"),
        _at(PURGED).alias("purged"),
        F.sum(F.when(failed, 1).otherwise(0)).cast("int").alias("failures"),
    )
    # Compared by number: a job may be revived in the very millisecond of its failure.
    stands = F.col("last").isNotNull() & (F.col("last.seq") > F.coalesce("revived", F.lit(0)))
    outcome = (
        F.when(stands, F.col("last.outcome"))
        .when(F.col("expired").isNotNull(), "expired")
        .when(F.col("removed").isNotNull(), "cancelled")
        .otherwise("removed")
    )
    left = F.col("gone").isNotNull() | (F.col("purged").isNotNull() & stands)
    return found.where(left & F.col("created").isNotNull()).select(
        "host",
        "queue",
        F.lit("").alias("name"),
        F.col("job_id").alias("id"),
        outcome.alias("outcome"),
        "created",
        F.when(stands | F.col("expired").isNotNull(), F.col("due")).alias("due"),
        F.when(stands, F.col("started")).alias("started"),
        F.when(stands, F.col("last.at")).otherwise(F.col("gone")).alias("ended"),
        "failures",
        F.lit("").alias("worker"),
    )


def _is_attempt() -> Column:
    """Whether an event ends an attempt: the job was pulled, and has not been given up since."""
    return F.col("pulled").isNotNull() & (F.col("pulled") > F.coalesce("let_go", F.lit(-1)))


def removed_attempts(lives: DataFrame) -> DataFrame:
    """Attempts of jobs that are gone, except those that completed them."""
    ended = F.col("kind").isin("failed", "stalled") & _is_attempt()
    cancelled = _field_is("reason", "cancelled")
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
