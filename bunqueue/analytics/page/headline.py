"""The top of the report: its subject, what matters most, and what stood out."""

from __future__ import annotations

from html import escape
from itertools import groupby

from bunqueue.analytics import words
from bunqueue.analytics.anomalies import MIN_ATTEMPTS, MIN_BUCKETS
from bunqueue.analytics.page import links
from bunqueue.analytics.page.figures import OUTCOMES, Figures, Row

TOLD = 8  # findings to list
TOLD_FACTS = 6  # of each


def heading(figures: Figures) -> str:
    """The subject of the report."""
    about = figures.about
    hosts = ", ".join(about.hosts) if len(about.hosts) <= 5 else f"{len(about.hosts)} hosts"
    when = words.stretch(about.since, about.until, about.zone)
    return (
        f"<header><h1>How the queues did</h1><p class=range>{escape(hosts)} · {escape(when)}"
        f" ({escape(about.zone.key)})</p></header>"
    )


def lead(figures: Figures) -> str:
    """The whole report in a few sentences."""
    text = filter(None, (_ended(figures), _waits(figures.totals), _lost(figures.totals), _left(figures)))
    return f"<p class=lead>{escape(' '.join(text))}</p>"


def _ended(figures: Figures) -> str:
    row = figures.totals
    ended = sum(row[outcome] for outcome in OUTCOMES)
    if not ended:
        return "No job has ended in this time."
    completed = words.share(row["completed"] / ended)
    text = f"{words.things(ended, 'job')} ended, {completed} of them completed"
    if not row["failed"]:
        return f"{text}; none failed for good."
    return (
        f"{text}; {words.count(row['failed'])} failed for good{_most(figures, _numbers(figures, 'failed'))}."
    )


def _waits(row: Row) -> str:
    if row["wait_p50"] is None:
        return ""
    half = f"within {words.span(row['wait_p50'])} of being due" if row["wait_p50"] else "at once when due"
    return f"Half of the jobs were taken by a worker {half}, 95 % within {words.span(row['wait_p95'])}."


def _lost(row: Row) -> str:
    if not row["run_wasted"]:
        return ""
    retried = f"{words.things(row['retried'], 'job')} took more than one attempt. " if row["retried"] else ""
    return (
        f"{retried}Attempts that did not complete their job took {words.share(row['waste_rate'])} of all"
        f" working time: {words.hours(row['run_wasted'])}."
    )


def _left(figures: Figures) -> str:
    waiting = {queue: left.waiting for queue, left in figures.left.items() if left.waiting}
    count = sum(waiting.values())
    if not count:
        return ""
    verb = "was" if count == 1 else "were"
    return f"At the end {words.things(count, 'job')} {verb} waiting for a worker{_most(figures, waiting)}."


def _numbers(figures: Figures, number: str) -> dict[tuple[str, str], int]:
    return {(row["host"], row["queue"]): row[number] for row in figures.tables["queues"] if row[number]}


def _most(figures: Figures, counts: dict[tuple[str, str], int]) -> str:
    """The queue with the highest count, if there are several queues. It is the end of a sentence."""
    queues = {(row["host"], row["queue"]) for row in figures.tables["queues"]} | figures.left.keys()
    if not counts or len(queues) < 2:
        return ""
    queue = max(counts, key=lambda each: counts[each])
    share = "all" if len(counts) == 1 else words.count(counts[queue])
    return f", {share} of them in {words.place(*queue, len(figures.about.hosts))}"


def tiles(figures: Figures) -> str:
    """The headline numbers."""
    row = figures.totals
    waiting = figures.carried(figures.tables["backlog_over_time"], "waiting")
    found = (
        ("Jobs completed", words.count(row["completed"]), _pace(row["throughput"] or 0)),
        ("Failed for good", words.share(row["failure_rate"]), words.things(row["failed"], "job")),
        ("Wait, 95 % within", words.span(row["wait_p95"]), f"half within {words.span(row['wait_p50'])}"),
        ("Run, 95 % within", words.span(row["run_p95"]), f"half within {words.span(row['run_p50'])}"),
        ("Most waiting", words.count(max(waiting, default=0)), f"{words.count(waiting[-1])} at the end"),
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
    """Queues that left their usual band, in words, and queues in which nothing moved."""
    rows = sorted(figures.tables["anomalies"], key=lambda row: row["finding"])
    findings = [list(some) for _, some in groupby(rows, key=lambda row: row["finding"])]
    items = [_finding(figures, some) for some in findings]
    about = (
        "Times in which queues left their usual band, shaded in the charts, the gravest first."
        if items
        else ""
    )
    items += _stuck(figures)
    if not items:
        return f"<h2>What stood out</h2><p></p>{_calm(figures)}"
    more = len(items) - TOLD
    if more > 0:
        items[TOLD:] = [f"<li class=why>{more} more in anomalies.parquet and queues.parquet.</li>"]
    calm = "" if findings else _calm(figures)
    return f"<h2>What stood out</h2><p>{about}</p><ul class='card stood'>{''.join(items)}</ul>{calm}"


def _finding(figures: Figures, rows: list[Row]) -> str:
    """What happened at one time: a fact, or several."""
    number = f"<i class=number>{rows[0]['finding']}</i>"
    facts = [_fact(row) + links.of_anomaly(figures.about, row) for row in rows[:TOLD_FACTS]]
    if len(rows) == 1:
        return f"<li>{number}{facts[0]}</li>"
    begin, end = min(row["since"] for row in rows), max(row["until"] for row in rows)
    when = words.stretch(begin, end, figures.about.zone)
    more = len(rows) - TOLD_FACTS
    rest = f"<p class=why>{more} more in anomalies.parquet.</p>" if more > 0 else ""
    listed = "".join(f"<div class=fact>{fact}</div>" for fact in facts)
    return f"<li>{number}<b>{escape(when)}</b>{listed}{rest}</li>"


def _fact(row: Row) -> str:
    text, dot, why = row["text"].partition(" Most often: ")
    name, colon, rest = text.partition(": ")
    reason = f" <span class=why>Most often: <code>{escape(why)}</code></span>" if dot else ""
    return f"<b>{escape(name)}{colon}</b>{escape(rest)}{reason}"


def _stuck(figures: Figures) -> list[str]:
    """Queues with waiting jobs in which no attempt has ended, the longest queue first."""
    worked = _numbers(figures, "attempts")
    waiting = {key: left.waiting for key, left in figures.left.items() if left.waiting and key not in worked}
    return [
        f"<li><b>{escape(words.place(*key, len(figures.about.hosts)))} stands still:</b>"
        f" {words.things(count, 'job')} waiting at the end, and no attempt has ended in this time."
        f"{links.of_waiting(figures.about, *key)}</li>"
        for key, count in sorted(waiting.items(), key=lambda each: -each[1])
    ]


def _calm(figures: Figures) -> str:
    """The reason for an empty list: nothing was unusual, or there was too little data."""
    unit = figures.about.unit
    if len(figures.buckets) < MIN_BUCKETS:
        text = f"The time is too short to say what is usual: less than {MIN_BUCKETS} {unit}s."
        return f"<div class='card unknown'>{text}</div>"
    if not figures.judged:
        text = (
            "No queue was busy enough to say what is usual in it: that takes"
            f" {MIN_ATTEMPTS} attempts in each of {MIN_BUCKETS} {unit}s."
        )
        return f"<div class='card unknown'>{text}</div>"
    queues = len(figures.tables["queues"])
    some = f" {figures.judged:,} of {queues:,} were busy enough to tell." if figures.judged < queues else ""
    text = f"No queue left its usual band of failures, waits and run times.{some}"
    return f"<div class='card calm'>{text}</div>"
