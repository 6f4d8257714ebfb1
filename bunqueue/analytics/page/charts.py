"""Charts as inline SVG.  Lines and bars have coordinates that stretch with the page.  Texts are HTML beside
them, so both are sharp at any width and on paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

HEIGHT = 100.0
_NICE = (1, 2, 2.5, 5, 10)
MAX_BARS = 400  # more would be thinner than a pixel
MARKS = 7  # at most, along the foot
TAG_WIDTH = 7.0  # percent of a chart's width that the numbers of a band take, on a phone
MOST_IN_TAG = 2  # numbers of bands above each other
MOST_TOLD = 6  # bands that the caption of a chart explains


class Series(NamedTuple):
    """The values of a line or bar: one for each bucket, None for a missing one.  ``kind`` chooses the
    colour."""

    name: str
    kind: str
    values: Sequence[float | None]


class Band(NamedTuple):
    """A shaded stretch of buckets, from ``begin`` to before ``end``: the number of a finding, and what it is
    about."""

    begin: int
    end: int
    number: int
    about: str


class Axis(NamedTuple):
    """The buckets of a chart: the full name of each, the label below the chart (some of the non-empty ones
    are shown; a second line is possible), what the whole axis is, and what stood out."""

    titles: Sequence[str]
    marks: Sequence[str]
    about: str = ""
    bands: Sequence[Band] = ()


Say = Callable[[float | None], str]


def ceiling(value: float) -> float:
    """The next round number."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _NICE if step * power >= value * 0.999)


def ceiling_count(value: float) -> float:
    """The next round whole number with a half that is also whole."""
    found = ceiling(value)
    return (
        next((even for even in (2, 4, 6, 8, 10, 20, 30, 50) if even >= value), found) if value < 50 else found
    )


def ceiling_ms(ms: float) -> float:
    """The next round duration, in seconds, minutes or hours, depending on its length."""
    for unit in (86_400_000.0, 3_600_000.0, 60_000.0):
        if ms > 2 * unit:
            return unit * next((step for step in (3, 5, 10, 15, 30, 60) if step * unit >= ms), ms / unit)
    return ceiling(ms)


def columns(axis: Axis, series: Sequence[Series], say: Say, label: str, *, legend: bool = False) -> str:
    """Stacked bars over time.  ``legend``: also for a single series."""
    totals = [sum(each.values[place] or 0 for each in series) for place in range(len(axis.titles))]
    top = ceiling_count(max(totals, default=0))
    wide = 0.84 if len(totals) <= MAX_BARS / 2 else 1.0
    bars = []
    for place, title in enumerate(axis.titles):
        below, parts = 0.0, []
        for each in series:
            value = each.values[place] or 0
            if value:
                high = value / top * HEIGHT
                x = place + (1 - wide) / 2
                below += high
                parts.append(_rect(each.kind, x, HEIGHT - below, wide, high))
        if parts:
            text = ", ".join(
                f"{say(each.values[place])} {each.name}" for each in series if each.values[place]
            )
            bars.append(f"<g><title>{escape(f'{title}: {text}')}</title>{''.join(parts)}</g>")
    return _plot(axis, top, say, _legend(series, single=legend), "".join(bars), label)


def lines(
    axis: Axis,
    series: Sequence[Series],
    say: Say,
    label: str,
    *,
    round_up: Callable[[float], float] = ceiling,
) -> str:
    """Lines over time; the first series is an area."""
    known = [value for each in series for value in each.values if value is not None]
    top = round_up(max(known, default=0.0))
    drawn = [_line(each, top, filled=place == 0) for place, each in enumerate(series)]
    hover = []
    for place, title in enumerate(axis.titles):
        text = ", ".join(
            f"{each.name} {say(each.values[place])}" for each in series if each.values[place] is not None
        )
        if text:
            text = escape(f"{title}: {text}")
            hover.append(f"<g><title>{text}</title>{_rect('hover', place, 0, 1, HEIGHT)}</g>")
    return _plot(axis, top, say, _legend(series), "".join(drawn + hover), label)


def spark(values: Sequence[float | None], kind: str, label: str) -> str:
    """A small line without axes."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    body = _line(Series("", kind, values), top * 1.05, filled=True)
    begin, wide = (0.5, len(values) - 1) if len(values) > 1 else (0, 1)  # from point to point
    return _svg("spark", f"{begin:g} 0 {wide} {HEIGHT:g}", label, body)


def strip(axis: Axis, values: Sequence[float | None], say: Say, label: str) -> str:
    """A row of a heat map: the higher the value (0 to 1), the stronger the colour."""
    cells = []
    for place, (title, value) in enumerate(zip(axis.titles, values, strict=True)):
        if value:
            text = escape(f"{title}: {say(value)}")
            shade = f"{0.12 + 0.88 * min(1.0, value):.2f}"
            cells.append(
                f'<rect class="heat" x="{place}" y="0" width="1.02" height="10" opacity="{shade}">'
                f"<title>{text}</title></rect>"
            )
    return _svg("strip", f"0 0 {len(values)} 10", label, "".join(cells))


def bar(parts: Sequence[tuple[str, float]], whole: float, label: str) -> str:
    """One bar from left to right, in parts (kind, size)."""
    x, rects = 0.0, []
    for kind, size in parts:
        if size > 0 and whole > 0:
            width = max(size / whole * 100, 0.4)
            rects.append(_rect(kind, x, 0, width, 10))
            x += width
    return _svg("bar", "0 0 100 10", label, "".join(rects))


def foot(axis: Axis) -> str:
    """Some of the buckets' names, each at its position."""
    places = [place for place, mark in enumerate(axis.marks) if mark]
    spans = []
    for place in places[:: max(1, math.ceil(len(places) / MARKS))]:
        left = place / len(axis.marks) * 100
        if left < 92 or place == 0:  # the text would end beyond the chart
            mark = "<br>".join(map(escape, axis.marks[place].split("\n")))
            spans.append(f'<span style="left:{left:.2f}%">{mark}</span>')
    return f'<div class="foot" aria-hidden="true">{"".join(spans)}</div>'


def _tags(axis: Axis) -> str:
    """The numbers of the bands, above them; one tag for bands that begin close to each other."""
    tags: list[tuple[float, list[int]]] = []
    for band in sorted(axis.bands):
        left = band.begin / max(1, len(axis.titles)) * 100
        if tags and left - tags[-1][0] < TAG_WIDTH:
            if band.number not in tags[-1][1]:
                tags[-1][1].append(band.number)
        else:
            tags.append((left, [band.number]))
    spans = [
        f'<span style="left:{min(left, 100 - TAG_WIDTH / 2):.2f}%">'
        f"{' '.join(map(str, numbers[:MOST_IN_TAG]))}{'…' if len(numbers) > MOST_IN_TAG else ''}</span>"
        for left, numbers in tags
    ]
    return f'<div class="tags" aria-hidden="true">{"".join(spans)}</div>' if spans else ""


def _caption(axis: Axis) -> str:
    """What the axis is, and what the shaded bands are about."""
    about = {(band.number, band.about) for band in axis.bands}
    shaded = "".join(f"<li><b>{number}</b> {escape(text)}</li>" for number, text in sorted(about)[:MOST_TOLD])
    more = len(about) - MOST_TOLD
    rest = f"<li>and {more} more</li>" if more > 0 else ""
    bands = f"<ul class=bands>{shaded}{rest}</ul>" if shaded else ""
    return f"<p class=axis>{escape(axis.about)}</p>{bands}"


def _svg(kind: str, box: str, label: str, body: str) -> str:
    """A drawing that stretches."""
    name = f' class="{kind}"' if kind else ""
    return (
        f'<svg{name} viewBox="{box}" preserveAspectRatio="none" role="img" aria-label="{escape(label)}">'
        f"{body}</svg>"
    )


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="k-{kind}" x="{x:.6g}" y="{y:.5g}" width="{width:.4g}" height="{height:.4g}"/>'


def _line(series: Series, top: float, *, filled: bool) -> str:
    """A path through the middles of the buckets, in steps of one, with gaps where values are missing."""
    runs: list[list[tuple[float, float]]] = [[]]
    for place, value in enumerate(series.values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((place + 0.5, HEIGHT - value / top * HEIGHT))
    strokes, areas = [], []
    for run in filter(None, runs):
        if len(run) == 1:  # a point has no length
            run = [(run[0][0] - 0.3, run[0][1]), (run[0][0] + 0.3, run[0][1])]
        points = "L".join(f"{x:.5g},{y:.4g}" for x, y in run)
        strokes.append(f"M{points}")
        areas.append(f"M{run[0][0]:.5g},{HEIGHT:g}L{points}L{run[-1][0]:.5g},{HEIGHT:g}Z")
    area = f'<path class="area k-{series.kind}" d="{"".join(areas)}"/>' if filled else ""
    return f'{area}<path class="line k-{series.kind}" d="{"".join(strokes)}"/>'


def _legend(series: Sequence[Series], *, single: bool = False) -> str:
    if len(series) < 2 and not single:
        return ""
    entries = "".join(f'<span><i class="k-{each.kind}"></i>{escape(each.name)}</span>' for each in series)
    return f'<div class="legend">{entries}</div>'


def _plot(axis: Axis, top: float, say: Say, legend: str, body: str, label: str) -> str:
    count = max(1, len(axis.titles))
    ticks = "".join(
        f'<span style="bottom:{part * 100:g}%">{escape(say(top * part)) if part else "0"}</span>'
        for part in (0, 0.5, 1)
    )
    grid = "".join(f'<line class="grid" x1="0" x2="{count}" y1="{y}" y2="{y}"/>' for y in (0, 50, 100))
    unusual = "".join(
        f"<g><title>{escape(f'{band.number}: {band.about}')}</title>"
        f"{_rect('unusual', band.begin, 0, band.end - band.begin, HEIGHT)}</g>"
        for band in axis.bands
    )
    tags = _tags(axis)
    drawn = _svg("", f"0 0 {count} {HEIGHT:g}", label, unusual + grid + body)
    return (
        f'{legend}<div class="plot{" tagged" if tags else ""}">{tags}'
        f'<div class="ticks" aria-hidden="true">{ticks}</div>'
        f"{drawn}{foot(axis)}</div>{_caption(axis)}"
    )
