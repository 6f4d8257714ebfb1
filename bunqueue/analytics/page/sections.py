"""The parts of the report, from the headline to what failed.  Each is HTML, or nothing where there is nothing
to say."""

from __future__ import annotations

from collections import defaultdict
from html import escape

from bunqueue.analytics import words
from bunqueue.analytics.anomalies import MIN_BUCKETS
from bunqueue.analytics.page import charts
from bunqueue.analytics.page.charts import Series
from bunqueue.analytics.page.figures import Figures, Row, left_out

OUTCOMES = ("completed", "failed", "cancelled", "expired", "removed")
TOLD_ANOMALIES = 8
TOLD_QUEUES = 20
TOLD_FAILURES = 8
ALARMING = 0.01  # a share of failed jobs that is told in red


def heading(figures: Figures) -> str:
    """What this is about."""
    about = figures.about
    hosts = ", ".join(about.hosts) if len(about.hosts) <= 5 else f"{len(about.hosts)} hosts"
    when = words.stretch(about.since, about.until, about.zone)
    return (
        f"<header><h1>How the queues did</h1><p class=range>{escape(hosts)} · {escape(when)}"
        f" ({escape(about.zone.key)})</p></header>"
    )


def lead(figures: Figures) -> str:
    """The whole report in three sentences."""
    row = figures.totals
    ended = sum(row[outcome] for outcome in OUTCOMES)
    if not ended:
        return "<p class=lead>No job has ended in this time.</p>"
    text = f"{words.count(ended)} jobs ended, {words.share(row['completed'] / ended)} of them completed"
    text += f"; {words.count(row['failed'])} failed for good." if row["failed"] else "; none failed for good."
    if row["wait_p50"] is not None:
        half = f"within {words.span(row['wait_p50'])} of being due" if row["wait_p50"] else "at once when due"
        text += f" Half of them were taken by a worker {half}, 95 % within {words.span(row['wait_p95'])}."
    if row["run_wasted"]:
        text += (
            f" Attempts that did not complete their job took {words.share(row['waste_rate'])} of all working"
            f" time: {words.hours(row['run_wasted'])}."
        )
    return f"<p class=lead>{escape(text)}</p>"


def tiles(figures: Figures) -> str:
    """The headline numbers."""
    row = figures.totals
    found = (
        ("Jobs completed", words.count(row["completed"]), _pace(row["throughput"] or 0)),
        ("Failed for good", words.share(row["failure_rate"]), f"{words.count(row['failed'])} jobs"),
        ("Wait, 95 % within", words.span(row["wait_p95"]), f"half within {words.span(row['wait_p50'])}"),
        ("Run, 95 % within", words.span(row["run_p95"]), f"half within {words.span(row['run_p50'])}"),
        ("Needed a retry", words.share(row["retry_rate"]), f"{words.count(row['retried'])} jobs"),
        ("Work lost to failures", words.share(row["waste_rate"]), words.hours(row["run_wasted"] or 0)),
    )
    body = "".join(
        f"<div><dt>{name}</dt><dd>{escape(value)}</dd><small>{escape(more)}</small></div>"
        for name, value, more in found
    )
    return f"<dl class=tiles>{body}</dl>"


def _pace(throughput: float) -> str:
    """Jobs per second, or per hour where that is less than one."""
    value, unit = (throughput, "a second") if throughput >= 1 else (throughput * 3600, "an hour")
    return f"{words.count(round(value) if value >= 10 else round(value, 1))} {unit}"


def unusual(figures: Figures) -> str:
    """What left its usual band, in words."""
    rows = figures.tables["anomalies"]
    if not rows:
        calm = "No queue left its usual band of failures and waiting times."
        if len(figures.buckets) < MIN_BUCKETS:
            calm = (
                f"The time is too short to say what is usual: less than {MIN_BUCKETS} {figures.about.unit}s."
            )
        return f"<h2>What stood out</h2><p></p><div class='card calm'>{calm}</div>"
    items = []
    for row in rows[:TOLD_ANOMALIES]:
        told, dot, why = row["text"].partition(" Most often: ")
        name, colon, rest = told.partition(": ")
        reason = f" <span class=why>Most often: <code>{escape(why)}</code></span>" if dot else ""
        items.append(f"<li><b>{escape(name)}{colon}</b>{escape(rest)}{reason}</li>")
    more = len(rows) - TOLD_ANOMALIES
    if more > 0:
        items.append(f"<li class=why>{more} more in anomalies.csv.</li>")
    return (
        "<h2>What stood out</h2><p>Times in which a queue left its usual band, shaded in the charts.</p>"
        f"<ul class='card stood'>{''.join(items)}</ul>"
    )


def over_time(figures: Figures) -> str:
    """All queues together, over time."""
    rows, anomalies = figures.tables["over_time"], figures.tables["anomalies"]
    axis = figures.axis(anomalies)
    used = [outcome for outcome in OUTCOMES if figures.totals[outcome] or outcome in ("completed", "failed")]
    ended = charts.columns(
        axis,
        [Series(outcome, outcome, figures.over_time(rows, outcome)) for outcome in used],
        words.count,
        f"Jobs that ended, by {figures.about.unit}",
    )
    waiting = charts.lines(
        axis,
        [Series("waiting", "backlog", figures.carried(figures.tables["backlog_over_time"], "waiting"))],
        words.count,
        f"Jobs that waited for a worker at the end of each {figures.about.unit}",
    )
    spans = {
        what: charts.lines(
            axis,
            [
                Series("95 % within", what, figures.over_time(rows, f"{what}_p95", None)),
                Series("half within", "typical", figures.over_time(rows, f"{what}_p50", None)),
            ],
            words.span,
            f"How long jobs {'waited' if what == 'wait' else 'ran'}",
            round_up=charts.ceiling_ms,
        )
        for what in ("wait", "run")
    }
    unit = figures.about.unit
    return (
        "<h2>Over time</h2><p>All queues together.</p>"
        + _card("Jobs that ended", f"in each {unit}, by how they ended", ended)
        + _card(
            "Backlog", f"jobs that were due and that no worker had taken, at the end of each {unit}", waiting
        )
        + "<div class=pair>"
        + _card("Waiting", "from being due until a worker took the job", spans["wait"])
        + _card("Running", "from there until the job had completed", spans["run"])
        + "</div>"
    )


def _card(title: str, about: str, chart: str) -> str:
    return f"<div class=card><h3>{title}</h3><p>{about}</p>{chart}</div>"


def queues(figures: Figures) -> str:
    """Each queue, the busiest first."""
    over: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in figures.tables["queues_over_time"]:
        over[row["host"], row["queue"]].append(row)
    rows = sorted(figures.tables["queues"], key=lambda row: -row["attempts"])
    items = "".join(_queue(figures, row, over[row["host"], row["queue"]]) for row in rows[:TOLD_QUEUES])
    tail = left_out(rows, TOLD_QUEUES, "queues")
    return (
        "<h2>Queues</h2><p>The busiest first, each on a scale of its own.</p>"
        f"<div class=card><ul class=rows>{items}</ul>{tail}</div>"
    )


def _queue(figures: Figures, row: Row, over: list[Row]) -> str:
    name = figures.place(row)
    done = _small(figures, name, over, "completed", "completed")
    failed = _small(figures, name, over, "failed_attempts", "failed")
    rate = row["failure_rate"] or 0
    bad = f"{words.share(rate)} failed" if rate else "none failed"
    bad = f"<span class=bad>{bad}</span>" if rate >= ALARMING else bad
    told = (
        f"<b>{words.count(row['completed'])}</b> completed, {bad}<br>"
        f"wait <b>{words.span(row['wait_p95'])}</b>, run <b>{words.span(row['run_p95'])}</b> (95 %)"
    )
    return (
        f"<li><div class=name>{escape(name)}</div><div class=queue>{done}{failed}</div>"
        f"<div class=told>{told}</div></li>"
    )


def _small(figures: Figures, name: str, over: list[Row], number: str, kind: str) -> str:
    """A small line with what it is, and the highest that it gets."""
    values, what = figures.over_time(over, number), number.replace("_", " ")
    drawn = charts.spark(values, kind, f"{name}: {what}")
    most = max((value or 0 for value in values), default=0)
    unit = f"an {figures.about.unit}" if figures.about.unit == "hour" else f"a {figures.about.unit}"
    told = f"{what}, at most {words.count(most)} {unit}" if most else f"{what}: none"
    return f"<div>{drawn}<small>{told}</small></div>"


def failures(figures: Figures) -> str:
    """What failed and why."""
    rows = sorted(figures.tables["failures"], key=lambda row: -row["attempts"])
    if not rows:
        return ""
    most = rows[0]["attempts"]
    items = []
    for row in rows[:TOLD_FAILURES]:
        outcome = row["outcome"].replace("_", " ")
        example = " ".join((row["example_error"] or "no message").split())[:300]
        drawn = charts.bar([("failed", row["attempts"])], most, f"{row['attempts']} attempts")
        plural = "job" if row["jobs"] == 1 else "jobs"
        last = words.moment(row["last_at"], figures.about.zone)
        items.append(
            f"<li><div class=name>{escape(figures.place(row))}<small>{escape(outcome)}</small></div>{drawn}"
            f"<div class=told><b>{words.count(row['attempts'])}</b> attempts of"
            f" {words.count(row['jobs'])} {plural}<br>last {escape(last)}</div>"
            f"<div class=wide>{escape(example)} <br>"
            f"for example job {escape(row['example_job'])}</div></li>"
        )
    tail = left_out(rows, TOLD_FAILURES, "failures")
    return (
        "<h2>Why attempts failed</h2><p>Errors that differ in numbers and ids only are counted as one.</p>"
        f"<div class=card><ul class=rows>{''.join(items)}</ul>{tail}</div>"
    )
