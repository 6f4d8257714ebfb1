"""Numbers and moments in the form in which a report prints them."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from bunqueue.analytics.anomalies import Anomaly
from bunqueue.text import span_of

DASH = "\u2013"
_STEPS = ((1e9, "bn"), (1e6, "M"), (1e4, "k"))


def count(value: float | None) -> str:
    """1,234 or 56.7 k or 1.23 M."""
    if value is None:
        return DASH
    for size, unit in _STEPS:
        if value >= size:
            scaled = value / (1e3 if unit == "k" else size)
            return f"{scaled:.3g} {unit}" if scaled < 999.5 else f"{scaled:,.0f} {unit}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def things(value: float, name: str) -> str:
    """1 job, 1,234 jobs, 56.7 k jobs."""
    return f"{count(value)} {name}{'' if value == 1 else 's'}"


def share(value: float | None) -> str:
    """0.02 % or 3.4 % or 56 %; only 0 is 0 %, and only 1 is 100 %."""
    if value is None:
        return DASH
    percent = value * 100
    if percent in (0, 100):
        return f"{percent:.0f} %"
    if percent < 0.01:
        return "< 0.01 %"
    if percent > 99.99:
        return "> 99.99 %"
    digits = 2 if percent < 1 or percent > 99 else 1 if percent < 10 or percent > 90 else 0
    return f"{percent:.{digits}f} %"


def span(ms: float | None) -> str:
    """0 ms, 250 ms, 1.5 s, 3m 20s, 2h 5m."""
    return DASH if ms is None else span_of(ms)


def hours(ms: float) -> str:
    """Work, in hours of a worker's slot."""
    found = ms / 3_600_000
    return f"{found:,.0f} hours" if found >= 10 else f"{found:.1f} hours" if found >= 1 else span_of(ms)


def moment(at: datetime, zone: ZoneInfo) -> str:
    """Sat 21 Nov 2026, 14:05."""
    local = at.astimezone(zone)
    return f"{local:%a} {local.day} {local:%b %Y, %H:%M}"


def label(at: datetime, zone: ZoneInfo, unit: str) -> str:
    """A bucket, for the foot of a chart: the day, below the time of day if the buckets are shorter."""
    local = at.astimezone(zone)
    day = f"{local.day} {local:%b}"
    return day if unit == "day" else f"{local:%H:%M}\n{day}"


def stretch(since: datetime, until: datetime, zone: ZoneInfo) -> str:
    """From and until. The day appears only once if both are on the same day."""
    first, last = since.astimezone(zone), until.astimezone(zone)
    if first.date() == last.date():
        return f"{moment(since, zone)} to {last:%H:%M}"
    return f"{moment(since, zone)} to {moment(until, zone)}"


def place(host: str, queue: str, hosts: int) -> str:
    """A queue, with its host when there are several."""
    return f"{queue} on {host}" if hosts > 1 else queue


_HOW = {  # what is unusual, for the worst value and the usual one
    "attempt_failure_rate": (
        "failed more than usual",
        "up to {worst} of its attempts failed; usually {usual} do",
    ),
    "wait_p95": (
        "kept jobs waiting",
        "one in twenty waited up to {worst} or longer; usually that is {usual}",
    ),
    "run_p50": (
        "ran slower than usual",
        "half of its jobs ran {worst} or longer; usually that is {usual}",
    ),
    "run_p95": (
        "ran slower than usual",
        "one in twenty ran up to {worst} or longer; usually that is {usual}",
    ),
    "total_p95": (
        "took longer than usual",
        "one in twenty took up to {worst} or longer from its push to its end; usually that is {usual}",
    ),
}


def subject(host: str, queue: str, name: str | None, hosts: int) -> str:
    """What an anomaly is about: a queue, or a name of its jobs."""
    where = place(host, queue, hosts)
    return where if name is None else f"{name or '(removed jobs)'} in {where}"


def brief(what: str) -> str:
    """An anomaly without its numbers: failed more than usual."""
    return _HOW[what][0]


def describe(
    anomaly: Anomaly,
    zone: ZoneInfo,
    hosts: int,
    reason: str | None = None,
    name: tuple[str, float] | None = None,
) -> str:
    """An anomaly as a sentence or two.  ``reason`` is the most common error of its attempts, ``name`` the
    name of jobs that was worst, and how bad."""
    how, text = _HOW[anomaly.what]
    said = share if anomaly.is_failures else span
    found = text.format(worst=said(anomaly.worst), usual=said(anomaly.usual))
    when = stretch(anomaly.since, anomaly.until, zone)
    who = subject(anomaly.host, anomaly.queue, anomaly.name, hosts)
    worst = f" Worst: {name[0] or '(removed jobs)'}, {said(name[1])}." if name is not None else ""
    why = f" Most often: {reason}" if reason else ""
    return f"{who} {how}: {when}, {found}.{worst}{why}"
