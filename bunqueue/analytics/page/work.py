"""The parts of the report about work: where the time went, which workers did it, and what took longest."""

from __future__ import annotations

import re
from collections import defaultdict
from html import escape

from bunqueue.analytics import numbers, words
from bunqueue.analytics.page import charts
from bunqueue.analytics.page.figures import Figures, Row, left_out

TOLD_NAMES = 12
TOLD_WORKERS = 20
TOLD_SLOWEST = 10
NO_NAME = "(no name given)"
_OWNER = re.compile(
    r":[0-9]+:[0-9a-f]{8}$"
)  # what workers add to their names: the process id and a random number

# The numbers on the page, and their names in the documentation.
_DEFINED = (
    ("Wait", "wait_p95", "activity"),
    ("Run", "run_p95", "activity"),
    ("From push to end", "total_p95", "activity"),
    ("Failed for good", "failure_rate", "activity"),
    ("Retried", "retried", "activity"),
    ("Work lost to failures", "waste_rate", "activity"),
    ("Waiting, backlog", "waiting", "backlog"),
    ("Use of a worker's places", "utilisation", "work"),
)


def names(figures: Figures) -> str:
    """The jobs that took the workers' time, and the share of it that was lost."""
    rows = sorted(figures.tables["names"], key=lambda row: -(row["run_total"] or 0))
    rows = [row for row in rows if row["run_total"]]
    if not rows:
        return ""
    most = rows[0]["run_total"]
    items = []
    for row in rows[:TOLD_NAMES]:
        lost = row["run_wasted"]
        parts = [("run", row["run_total"] - lost), ("failed", lost)]
        drawn = charts.bar(parts, most, f"{words.hours(row['run_total'])}, lost {words.hours(lost)}")
        text = f"<b>{words.hours(row['run_total'])}</b>"
        text += f", <span class=bad>{words.share(row['waste_rate'])} lost</span>" if lost else ""
        text += f"<br>half in {words.span(row['run_p50'])}, 95 % in {words.span(row['run_p95'])}"
        name = escape(row["name"] or "(removed jobs)")
        items.append(
            f"<li><div class=name>{name}<small>{escape(figures.place(row))}</small></div>{drawn}"
            f"<div class=note>{text}</div></li>"
        )
    tail = left_out(rows, TOLD_NAMES, "names")
    legend = (
        "<div class=legend><span><i class=k-run></i>completed their job</span>"
        "<span><i class=k-failed></i>lost: the attempt failed, stalled or was stopped</span></div>"
    )
    return (
        "<h2>Where the time went</h2><p>Working time of all attempts, by kind of job.</p>"
        f"<div class=card>{legend}<ul class=rows>{''.join(items)}</ul>{tail}</div>"
    )


def workers(figures: Figures) -> str:
    """How busy each worker was."""
    over: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in figures.tables["workers_over_time"]:
        over[row["host"], row["worker"]].append(row)
    rows = sorted(figures.tables["workers"], key=lambda row: -row["busy"])
    if not rows:
        return ""
    axis = figures.axis()
    items = []
    for row in rows[:TOLD_WORKERS]:
        name = row["worker"] or NO_NAME
        values = figures.over_time(over[row["host"], row["worker"]], "utilisation")
        drawn = charts.strip(axis, values, words.share, f"{name}: utilisation over time")
        given, process = _OWNER.sub("", name), _OWNER.search(name)
        host = row["host"] if len(figures.about.hosts) > 1 else ""
        which = " on ".join(filter(None, (process[0].strip(":") if process else "", host)))
        items.append(
            f"<li><div class=name>{escape(given)}<small>{escape(which)}</small></div>{drawn}"
            f"<div class=note>{_busy(row)}</div></li>"
        )
    tail = left_out(rows, TOLD_WORKERS, "workers")
    return (
        "<h2>Workers</h2><p>How much of their places was in use: the stronger the colour, the fuller."
        " Places are the most jobs that a worker ever had at the same time.</p>"
        f"<div class=card><ul class='rows strips'>{''.join(items)}</ul>"
        f"<div class=along>{charts.foot(axis)}</div><p class=axis>{escape(axis.about)}</p>{tail}</div>"
    )


def _busy(row: Row) -> str:
    """How long a worker worked. With its utilisation, if it had more attempts than slots: the only attempt of
    a slot always fills it."""
    text = f"<b>{words.hours(row['busy'])}</b> of work, {words.things(row['attempts'], 'attempt')}"
    if row["attempts"] <= row["slots"]:
        return text
    return f"{text}<br>{words.share(row['utilisation'])} of {words.things(row['slots'], 'place')} used"


def slowest(figures: Figures) -> str:
    """The completed jobs that ran longest."""
    rows = sorted(figures.tables["slowest"], key=lambda row: -row["run"])[:TOLD_SLOWEST]
    if not rows:
        return ""
    most = rows[0]["run"]
    items = []
    for row in rows:
        drawn = charts.bar([("run", row["run"])], most, words.span(row["run"]))
        when = words.moment(row["started_at"], figures.about.zone)
        items.append(
            f"<li><div class=name>{escape(row['name'])}<small>{escape(figures.place(row))}</small></div>"
            f"{drawn}<div class=note><b>{words.span(row['run'])}</b> from {escape(when)}<br>"
            f"<code>{escape(row['id'])}</code></div></li>"
        )
    return (
        "<h2>The slowest jobs</h2><p>Those that ran longest until they completed.</p>"
        f"<div class=card><ul class=rows>{''.join(items)}</ul></div>"
    )


def fine_print(figures: Figures) -> str:
    """The meaning of the numbers, what they leave out, and where to find more."""
    known = {
        (kind, number.name): number.formula
        for kind, group in (
            ("activity", numbers.ACTIVITY),
            ("work", numbers.WORK),
            ("backlog", numbers.BACKLOG.numbers),
        )
        for number in group
    }
    defined = "".join(
        f"<dt>{escape(title)}</dt><dd>{escape(_whole(known, kind, name))}</dd>"
        for title, name, kind in _DEFINED
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in figures.about.notes)
    listed = f"<h2>What is not in these numbers</h2><p></p><ul class=notes>{notes}</ul>" if notes else ""
    made = words.moment(figures.about.made_at, figures.about.zone)
    return (
        f"{listed}<details><summary>How the numbers are made</summary><dl class=defined>{defined}</dl>"
        f"</details><footer>Made {escape(made)} ({escape(figures.about.zone.key)}) by bunqueue analytics."
        " The same numbers, and more of them, are in the Parquet files beside this page.</footer>"
    )


def _whole(known: dict[tuple[str, str], str], kind: str, name: str) -> str:
    """A formula in full: that of a p95 refers to that of the p50."""
    if name.endswith("_p95"):
        return known[kind, name.replace("_p95", "_p50")].replace("median of ", "")
    return known[kind, name]
