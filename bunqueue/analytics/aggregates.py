"""The tables of `bunqueue.analytics.numbers`, except the anomalies, computed from facts of jobs and attempts.

Counts and sums are computed for the finest groups first, and added up from there.  Percentiles cannot be
added up, but the number of times that each duration occurs can.  So the percentiles are exact, and the facts
are read only once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from bunqueue.analytics import numbers
from bunqueue.analytics.errors_alike import CHANGING, MAX_PATTERN
from bunqueue.analytics.facts import LOST, Facts
from bunqueue.analytics.numbers import PERCENTILES
from bunqueue.analytics.times import bucket_of, buckets_of, end_of, time_of

SLOWEST = 10  # of each queue
WHO = ["host", "worker"]
FINEST = ["host", "queue", "name", "bucket"]
GROUPS = (
    numbers.TOTALS,
    numbers.OVER_TIME,
    numbers.QUEUES,
    numbers.QUEUES_OVER_TIME,
    numbers.NAMES,
    numbers.NAMES_OVER_TIME,
)
_COUNTS = ("created", "completed", "failed", "cancelled", "expired", "removed", "retried", "attempts")
_SUMS = (*_COUNTS, "failed_attempts", "run_total", "run_wasted")


class Range(NamedTuple):
    """The range of a report: from ``since`` to before ``until`` (epoch ms), divided into ``unit`` of
    ``zone``."""

    since: int
    until: int
    unit: str
    zone: str

    def covers(self, ms: Column) -> Column:
        """Whether a moment is in the range."""
        return (ms >= self.since) & (ms < self.until)

    def bucket(self, ms: Column) -> Column:
        """The bucket of a moment; ms."""
        return bucket_of(ms, self.unit, self.zone)

    def seconds(self, bucket: Column) -> Column:
        """The seconds of the range that are in a bucket.  Without a bucket, those of the whole range."""
        begin = F.greatest(bucket, F.lit(self.since))
        end = F.least(end_of(bucket, self.unit, self.zone), F.lit(self.until))
        whole = F.lit(self.until - self.since)
        return F.when(bucket.isNull(), whole).otherwise(end - begin) / 1000


def _keys(table: numbers.Table) -> list[str]:
    return [key.name for key in table.keys]


def activity(facts: Facts, span: Range) -> DataFrame:
    """All of GROUPS in one frame: their keys, null where a table does not have them, the number of the table
    as ``grouping``, and the numbers of `numbers.ACTIVITY`."""
    sums = _grouped(_sums(facts, span), [F.sum(name).alias(name) for name in _SUMS])
    waits = _durations(facts.jobs, span, F.col("started") - F.col("due"), F.col("started").isNotNull())
    done = F.col("outcome") == "completed"
    runs = _durations(facts.jobs, span, F.col("ended") - F.col("started"), done)
    parts = [sums, _percentiles(waits, "wait"), _percentiles(runs, "run")]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part, allowMissingColumns=True)
    keys = ["grouping", *FINEST]
    rest = [name for name in whole.columns if name not in keys]
    merged = whole.groupBy(*keys).agg(*(F.max(name).alias(name) for name in rest))
    return _with_rates(merged, span)


def _with_rates(sums: DataFrame, span: Range) -> DataFrame:
    ended = F.col("completed") + F.col("failed")
    found = sums.fillna(0, list(_SUMS))
    found = found.withColumn("failure_rate", _rate(F.col("failed"), ended))
    found = found.withColumn("attempt_failure_rate", _rate(F.col("failed_attempts"), F.col("attempts")))
    found = found.withColumn("retry_rate", _rate(F.col("retried"), ended))
    found = found.withColumn("throughput", _rate(F.col("completed"), span.seconds(F.col("bucket"))))
    found = found.withColumn("waste_rate", _rate(F.col("run_wasted"), F.col("run_total")))
    columns = [number.name for number in numbers.ACTIVITY]
    return found.withColumn("bucket", time_of(F.col("bucket"))).select("grouping", *FINEST, *columns)


def _rate(part: Column, whole: Column) -> Column:
    """A ratio; null where the denominator is 0."""
    return F.when(whole > 0, part / whole)


def _sums(facts: Facts, span: Range) -> DataFrame:
    """Counts and sums of the finest groups, one row per group and kind of number."""
    ended = facts.jobs.where(span.covers(F.col("ended")))
    outcome = F.col("outcome")
    more = F.when(outcome == "completed", F.col("failures")).otherwise(F.col("failures") - 1) > 0
    counts = [
        _count(outcome == name).alias(name)
        for name in ("completed", "failed", "cancelled", "expired", "removed")
    ]
    counts.append(_count(outcome.isin("completed", "failed") & more).alias("retried"))
    by_end = ended.withColumn("bucket", span.bucket(F.col("ended"))).groupBy(*FINEST).agg(*counts)
    created = facts.jobs.where(span.covers(F.col("created")))
    by_creation = created.withColumn("bucket", span.bucket(F.col("created"))).groupBy(*FINEST)
    both = by_end.unionByName(by_creation.agg(F.count("*").alias("created")), allowMissingColumns=True)
    attempts = facts.attempts.where(span.covers(F.col("ended")))
    run = F.coalesce(F.col("ended") - F.col("started"), F.lit(0))
    by_attempt = attempts.withColumn("bucket", span.bucket(F.col("ended"))).groupBy(*FINEST)
    worked = by_attempt.agg(
        F.count("*").alias("attempts"),
        _count(~outcome.isin(*LOST)).alias("failed_attempts"),
        F.sum(run).alias("run_total"),
        F.sum(F.when(outcome != "completed", run).otherwise(0)).alias("run_wasted"),
    )
    return both.unionByName(worked, allowMissingColumns=True)


def _count(condition: Column) -> Column:
    return F.sum(F.when(condition, 1).otherwise(0))


def _durations(jobs: DataFrame, span: Range, ms: Column, which: Column) -> DataFrame:
    """The number of times that each duration occurs in each of the finest groups."""
    found = jobs.where(which & span.covers(F.col("ended"))).withColumn("ms", ms).where("ms is not null")
    return (
        found.withColumn("bucket", span.bucket(F.col("ended")))
        .groupBy(*FINEST, "ms")
        .agg(F.count("*").alias("times"))
    )


def _percentiles(durations: DataFrame, what: str) -> DataFrame:
    found = F.percentile("ms", list(PERCENTILES), F.col("times"))
    names = [f"{what}_p{round(part * 100)}" for part in PERCENTILES]
    grouped = _grouped(durations, [found.alias("all"), F.max("ms").cast("double").alias(f"{what}_max")])
    return grouped.select(
        "grouping",
        *FINEST,
        *(F.col("all")[place].alias(name) for place, name in enumerate(names)),
        f"{what}_max",
    )


def _grouped(frame: DataFrame, numbers_of_group: Sequence[Column]) -> DataFrame:
    """A frame by the keys of each of GROUPS, all in one.  ``grouping`` is the index of the table in
    GROUPS."""
    sets = [[F.col(key) for key in _keys(table)] for table in GROUPS]
    # One bit per key, from the left: 1 if the key is not part of the group.
    ids = [sum((key not in _keys(table)) << 3 - bit for bit, key in enumerate(FINEST)) for table in GROUPS]
    found = frame.groupingSets(sets, *(F.col(key) for key in FINEST)).agg(
        F.grouping_id().alias("mask"), *numbers_of_group
    )
    place = F.array_position(F.array(*(F.lit(number) for number in ids)), F.col("mask").cast("int"))
    return found.withColumn("grouping", (place - 1).cast("int")).drop("mask")


def comings_and_goings(facts: Facts, span: Range) -> DataFrame:
    """The change of each queue's backlog in each bucket."""
    taken = F.coalesce("started", "ended")
    due = F.when(F.col("due").isNotNull(), F.least("due", taken))
    moments = F.array(
        *(
            F.struct(at.alias("at"), F.lit(waiting).alias("waiting"), F.lit(there).alias("there"))
            for at, waiting, there in (
                (due, 1, 0),
                (F.when(due.isNotNull(), taken), -1, 0),
                (F.col("created"), 0, 1),
                (F.col("ended"), 0, -1),
            )
        )
    )
    moved = facts.jobs.select("host", "queue", F.explode(moments).alias("moved"))
    flat = moved.select("host", "queue", "moved.*")
    begun = F.greatest(F.col("at"), F.lit(span.since))
    return (
        flat.where(F.col("at").isNotNull() & (F.col("at") < span.until))
        .groupBy("host", "queue", span.bucket(begun).alias("bucket"))
        .agg(F.sum("waiting").alias("waiting"), F.sum("there").alias("there"))
    )


def backlog(changes: DataFrame, keys: list[str]) -> DataFrame:
    """`numbers.BACKLOG` or `numbers.BACKLOG_OVER_TIME`, depending on ``keys``: changes added up over time."""
    summed = changes.groupBy(*keys).agg(F.sum("waiting").alias("waiting"), F.sum("there").alias("there"))
    whose = [F.col(key) for key in keys if key != "bucket"] or [F.lit(0)]
    so_far = Window.partitionBy(*whose).orderBy("bucket")
    return summed.select(
        *(F.col(key) for key in keys if key != "bucket"),
        time_of(F.col("bucket")).alias("bucket"),
        F.sum("waiting").over(so_far).alias("waiting"),
        F.sum("there").over(so_far).alias("unfinished"),
    )


def work_by_bucket(facts: Facts, span: Range) -> DataFrame:
    """The work of each worker in each bucket, with its slots, and the start and end of the work within the
    bucket."""
    worked = facts.attempts.where("started is not null").where(
        (F.col("ended") >= span.since) & (F.col("started") < span.until)
    )
    clipped = worked.withColumns(
        {
            "begin": F.greatest("started", F.lit(span.since)),
            "end": F.least("ended", F.lit(span.until)),
            "bad": ~F.col("outcome").isin(*LOST),
        }
    )
    touched = buckets_of(F.col("begin"), F.col("end"), span.unit, span.zone)
    parts = clipped.withColumn("bucket", F.explode(touched))
    closes = end_of(F.col("bucket"), span.unit, span.zone)
    overlap = F.greatest(F.least("end", closes) - F.greatest("begin", "bucket"), F.lit(0))
    ended = F.col("ended")
    here = span.covers(ended) & (ended >= F.col("bucket")) & (ended < closes)
    by_bucket = parts.groupBy(*WHO, "bucket").agg(
        _count(here).alias("attempts"),
        _count(here & F.col("bad")).alias("failed_attempts"),
        F.sum(overlap).alias("busy"),
        F.min("begin").alias("begin"),
        F.max("end").alias("end"),
    )
    return by_bucket.join(_slots(worked), WHO)


def workers(work: DataFrame) -> DataFrame:
    """`numbers.WORKERS`, from the result of `work_by_bucket`."""
    whole = work.groupBy(*WHO, "slots").agg(
        *(F.sum(name).alias(name) for name in ("attempts", "failed_attempts", "busy")),
        F.min("begin").alias("begin"),
        F.max("end").alias("end"),
    )
    return _used(whole, F.col("end") - F.col("begin"))


def workers_over_time(work: DataFrame, span: Range) -> DataFrame:
    """`numbers.WORKERS_OVER_TIME`, from the result of `work_by_bucket`."""
    used = _used(work, span.seconds(F.col("bucket")) * 1000)
    return used.withColumn("bucket", time_of(F.col("bucket")))


def _used(work: DataFrame, length: Column) -> DataFrame:
    return work.withColumn("utilisation", _rate(F.col("busy"), F.col("slots") * length))


def _slots(worked: DataFrame) -> DataFrame:
    """The maximum number of jobs that each worker had at the same time.  A job that ends as another starts
    makes room for it."""
    moments = F.explode(
        F.array(
            *(
                F.struct(F.col(name).alias("at"), F.lit(change).alias("change"))
                for name, change in (("started", 1), ("ended", -1))
            )
        )
    )
    flat = worked.select(*WHO, moments.alias("moment")).select(*WHO, "moment.*")
    steps = flat.groupBy(*WHO, "at").agg(F.sum("change").alias("change"))
    so_far = Window.partitionBy(*WHO).orderBy("at")
    most = steps.withColumn("held", F.sum("change").over(so_far)).groupBy(*WHO)
    return most.agg(F.greatest(F.max("held"), F.lit(1)).cast("int").alias("slots"))


def failed_attempts(facts: Facts, span: Range) -> DataFrame:
    """The failed attempts that `failures` counts, each with the pattern of its error."""
    line = F.substring(F.split(F.coalesce("error", F.lit("")), "\n", 2)[0], 1, MAX_PATTERN)
    failed = facts.attempts.where(span.covers(F.col("ended")) & ~F.col("outcome").isin(*LOST))
    pattern = F.regexp_replace(line, CHANGING, "#").alias("pattern")
    bucket = span.bucket(F.col("ended")).alias("bucket")
    return failed.select("host", "queue", "outcome", pattern, bucket, "id", "error", "ended")


def failures(failed: DataFrame) -> tuple[DataFrame, DataFrame]:
    """`numbers.FAILURES` and `numbers.FAILURES_OVER_TIME`."""
    kind = [key.name for key in numbers.FAILURE]
    whole = failed.groupBy(*kind).agg(
        F.count("*").alias("attempts"),
        F.count_distinct("id").alias("jobs"),
        F.min("ended").alias("first"),
        F.max(F.struct("ended", "id", "error")).alias("last"),
    )
    totals = whole.select(
        *kind,
        "attempts",
        "jobs",
        time_of(F.col("first")).alias("first_at"),
        time_of(F.col("last.ended")).alias("last_at"),
        F.col("last.id").alias("example_job"),
        F.col("last.error").alias("example_error"),
    )
    over_time = failed.groupBy(*kind, time_of(F.col("bucket")).alias("bucket"))
    return totals, over_time.agg(F.count("*").alias("attempts"))


def slowest(facts: Facts, span: Range) -> DataFrame:
    """`numbers.SLOWEST`."""
    done = facts.jobs.where(span.covers(F.col("ended")) & (F.col("outcome") == "completed"))
    run = done.where("started is not null").withColumn("run", F.col("ended") - F.col("started"))
    order = Window.partitionBy("host", "queue").orderBy(F.desc("run"), "id")
    best = run.withColumn("place", F.row_number().over(order)).where(F.col("place") <= SLOWEST)
    started, ended = (time_of(F.col(name)).alias(f"{name}_at") for name in ("started", "ended"))
    return best.select("host", "queue", "id", "name", "worker", started, ended, "run")
