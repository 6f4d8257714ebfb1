"""The parts of the report about all queues, about each queue, and about failures.  Each is HTML, or empty if
there is nothing to say."""

from __future__ import annotations

from collections import Counter, defaultdict
from html import escape

from bunqueue.analytics import words
from bunqueue.analytics.page import charts, links
from bunqueue.analytics.page.charts import Series
from bunqueue.analytics.page.figures import NOTHING_LEFT, OUTCOMES, Figures, Row, left_out

TOLD_QUEUES = 20
TOLD_FAILURES = 8
CHARTED_ERRORS = 4  # kinds of errors with a colour of their own
LEGEND_CHARACTERS = 70
ALARMING = 0.01  # the share of failed jobs from which it is shown in red
_ENDS = {  # outcomes of attempts, in a reader's words
    "explicit_fail": "error",
    "failed": "error",
    "timeout": "out of time",
    "stalled": "its worker fell silent",
}


def over_time(figures: Figures) -> str:
    """All queues combined, over time."""
    rows, unit = figures.tables["over_time"], figures.about.unit
    used = [outcome for outcome in OUTCOMES if figures.totals[outcome] or outcome in ("completed", "failed")]
    ended = charts.columns(
        figures.axis("failures"),
        [Series(outcome, outcome, figures.over_time(rows, outcome)) for outcome in used],
        words.count,
        f"Jobs that ended, by {unit}",
    )
    waiting = charts.lines(
        figures.axis("waiting"),
        [Series("waiting", "backlog", figures.carried(figures.tables["backlog_over_time"], "waiting"))],
        words.count,
        f"Jobs that waited for a worker at the end of each {unit}",
        round_up=charts.ceiling_count,
    )
    cards = [
        _card("Jobs that ended", f"in each {unit}, by how they ended", ended),
        _failed(figures),
        _card(
            "Backlog", f"jobs that were due and that no worker had taken, at the end of each {unit}", waiting
        ),
    ]
    if figures.totals["wait_p50"] is not None or figures.totals["run_p50"] is not None:
        cards += [
            "<div class=pair>",
            _card("Waiting", "from being due until a worker took the job", _spans_over_time(figures, "wait")),
            _card("Running", "from there until the job had completed", _spans_over_time(figures, "run")),
            "</div>",
        ]
    return f"<h2>Over time</h2><p>All queues together.</p>{''.join(cards)}"


def _failed(figures: Figures) -> str:
    """The failed attempts by kind of error, if there are any."""
    rows = figures.tables["failures_over_time"]
    if not rows:
        return ""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row["pattern"]] += row["attempts"]
    most = [pattern for pattern, _ in counts.most_common(CHARTED_ERRORS)]
    series = []
    for place, pattern in enumerate(most):
        mine = (row for row in rows if row["pattern"] == pattern)
        series.append(Series(_short(pattern), f"error-{place + 1}", figures.summed(mine, "attempts")))
    if len(counts) > len(most):
        rest = (row for row in rows if row["pattern"] not in most)
        series.append(Series("other errors", "error-0", figures.summed(rest, "attempts")))
    drawn = charts.columns(
        figures.axis("failures"),
        series,
        words.count,
        f"Attempts that failed, by {figures.about.unit}",
        legend=True,
    )
    return _card("Failures", f"attempts that failed in each {figures.about.unit}, by their error", drawn)


def _short(pattern: str) -> str:
    """The beginning of an error, as it fits into a legend."""
    text = " ".join(pattern.split()) or "no message"
    return text if len(text) <= LEGEND_CHARACTERS else f"{text[: LEGEND_CHARACTERS - 1]}…"


def _spans_over_time(figures: Figures, what: str) -> str:
    rows = figures.tables["over_time"]
    return charts.lines(
        figures.axis("waiting" if what == "wait" else "running"),
        [
            Series("95 % within", what, figures.over_time(rows, f"{what}_p95", None)),
            Series("half within", "typical", figures.over_time(rows, f"{what}_p50", None)),
        ],
        words.span,
        f"How long jobs {'waited' if what == 'wait' else 'ran'}",
        round_up=charts.ceiling_ms,
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
    text = "<br>".join(filter(None, (_outcomes(row), _spans(row), _left(figures, row))))
    return (
        f"<li><div class=name>{escape(name)}</div><div class=queue>{done}{failed}</div>"
        f"<div class=note>{text}</div></li>"
    )


def _outcomes(row: Row) -> str:
    rate = row["failure_rate"] or 0
    bad = f"{words.share(rate)} failed" if rate else "none failed"
    bad = f"<span class=bad>{bad}</span>" if rate >= ALARMING else bad
    others = "".join(f", {words.count(row[each])}&nbsp;{each}" for each in OUTCOMES[2:] if row[each])
    return f"<b>{words.count(row['completed'])}</b> completed, {bad}{others}"


def _spans(row: Row) -> str:
    spans = [
        f"{what} <b>{words.span(row[f'{what}_p95'])}</b>"
        for what in ("wait", "run")
        if row[f"{what}_p95"] is not None
    ]
    return f"{', '.join(spans)} (95 %)" if spans else ""


def _left(figures: Figures, row: Row) -> str:
    """The work that is left to do."""
    waiting, others = figures.left.get((row["host"], row["queue"]), NOTHING_LEFT)
    parts = [f"<b>{words.count(waiting)}</b> waiting"] if waiting else []
    parts += [f"{words.count(others)} running or not due"] if others else []
    return f"at the end {', '.join(parts)}" if parts else ""


def _small(figures: Figures, name: str, over: list[Row], number: str, kind: str) -> str:
    """A small chart with its name and its highest value."""
    values, what = figures.over_time(over, number), number.replace("_", " ")
    drawn = charts.spark(values, kind, f"{name}: {what}")
    most = max((value or 0 for value in values), default=0)
    unit = {"minute": "min", "hour": "h"}.get(figures.about.unit, figures.about.unit)
    text = f"{what}, max {words.count(most)}/{unit}" if most else f"{what}: none"
    return f"<div>{drawn}<small>{text}</small></div>"


def failures(figures: Figures) -> str:
    """The failures and their reasons."""
    rows = sorted(figures.tables["failures"], key=lambda row: -row["attempts"])
    if not rows:
        return ""
    most = rows[0]["attempts"]
    items = []
    for row in rows[:TOLD_FAILURES]:
        outcome = _ENDS.get(row["outcome"], row["outcome"].replace("_", " "))
        example = " ".join((row["example_error"] or "no message").split())[:300]
        drawn = charts.bar([("failed", row["attempts"])], most, f"{row['attempts']} attempts")
        last = words.moment(row["last_at"], figures.about.zone)
        items.append(
            f"<li><div class=name>{escape(figures.place(row))}<small>{escape(outcome)}</small></div>{drawn}"
            f"<div class=note>{words.things(row['attempts'], 'attempt')} of"
            f" {words.things(row['jobs'], 'job')}<br>last {escape(last)}</div>"
            f"<div class=wide>{escape(example)} <br>"
            f"for example job {escape(row['example_job'])}</div>{links.of_error(figures.about, row)}</li>"
        )
    tail = left_out(rows, TOLD_FAILURES, "failures")
    return (
        "<h2>Why attempts failed</h2>"
        "<p>Errors that differ only in numbers, ids and quoted parts are counted as one.</p>"
        f"<div class=card><ul class=rows>{''.join(items)}</ul>{tail}</div>"
    )
