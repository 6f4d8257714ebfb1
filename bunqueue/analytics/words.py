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
    """A bucket, for the foot of a chart."""
    local = at.astimezone(zone)
    return f"{local.day} {local:%b}" if unit == "day" else f"{local:%H:%M}"


def stretch(since: datetime, until: datetime, zone: ZoneInfo) -> str:
    """From and until. The day appears only once if both are on the same day."""
    first, last = since.astimezone(zone), until.astimezone(zone)
    if first.date() == last.date():
        return f"{moment(since, zone)} to {last:%H:%M}"
    return f"{moment(since, zone)} to {moment(until, zone)}"


def place(host: str, queue: str, hosts: int) -> str:
    """A queue, with its host when there are several."""
    return f"{queue} on {host}" if hosts > 1 else queue


def describe(anomaly: Anomaly, zone: ZoneInfo, hosts: int, reason: str | None = None) -> str:
    """An anomaly as a sentence or two. ``reason`` is the most common error of its attempts."""
    when = stretch(anomaly.since, anomaly.until, zone)
    name = place(anomaly.host, anomaly.queue, hosts)
    if anomaly.what == "wait_p95":
        return (
            f"{name} kept jobs waiting: {when}, one in twenty waited up to {span(anomaly.worst)} or longer;"
            f" usually that is {span(anomaly.usual)}."
        )
    text = (
        f"{name} failed more than usual: {when}, up to {share(anomaly.worst)} of its attempts failed;"
        f" usually {share(anomaly.usual)} do."
    )
    return f"{text} Most often: {reason}" if reason else text
