"""The time line of a run, as a page: faults, completed jobs and trouble by second, and who owned what."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from chaos.load import Trouble, Wait

COLOURS = ("#4878a8", "#e08a3c", "#5a9e62", "#a05a9e")
WIDTH, LANE = 1100, 14
AFTER_S = 3.0  # what happens so soon after a fault is counted as its consequence


class Fault(NamedTuple):
    """Something was broken from ``begun`` to ``ended``."""

    what: str
    begun: float
    ended: float


class Seen(NamedTuple):
    """What clients saw of a fault."""

    fault: Fault
    slowest_s: float  # the longest that one had to ask until its job was acknowledged
    codes: Mapping[str, int]  # how often requests were refused or not answered

    def __str__(self) -> str:
        codes = ", ".join(f"{code} {count}" for code, count in sorted(self.codes.items()))
        return f"{self.fault.what}: slowest push {self.slowest_s:.1f} s; {codes or 'nobody was refused'}"


def seen(fault: Fault, waits: Sequence[Wait], trouble: Sequence[Trouble]) -> Seen:
    """``waits`` and ``trouble``: those of the whole run."""
    ended = fault.ended + AFTER_S
    slowest = (wait.ended - wait.begun for wait in waits if wait.begun < ended and wait.ended > fault.begun)
    return Seen(
        fault, max(slowest, default=0.0), Counter(t.code for t in trouble if fault.begun <= t.at <= ended)
    )


class Sample(NamedTuple):
    """The owner of each shard, "" without one."""

    at: float
    owners: Sequence[str]


def write(
    path: Path,
    begun: float,
    ended: float,
    faults: Sequence[Seen],
    done: Sequence[float],
    trouble: Sequence[Trouble],
    samples: Sequence[Sample],
    problems: Sequence[str],
) -> None:
    """Write the page.  All times are of one clock, in seconds."""
    scale = WIDTH / max(ended - begun, 1.0)

    def x(at: float) -> float:
        return round((at - begun) * scale, 1)

    parts = [
        f'<rect x="{x(f.begun)}" y="0" width="{max(2, x(f.ended) - x(f.begun))}" height="400" fill="#f6d5d5">'
        f"<title>{html.escape(str(each))}</title></rect>"
        f'<text x="{x(f.begun)}" y="{12 + 12 * (n % 7)}">{html.escape(f.what)}</text>'
        for n, each in enumerate(faults)
        for f in (each.fault,)
    ]
    unanswered = [each.at for each in trouble]
    for values, colour, base in ((done, "#5a9e62", 150), (unanswered, "#c04040", 210)):
        seconds = Counter(int(at - begun) for at in values)
        most = max(seconds.values(), default=1)
        parts += [
            f'<rect x="{second * scale:.1f}" y="{base - 50 * count / most:.1f}" fill="{colour}" '
            f'width="{max(1, scale - 1):.1f}" height="{50 * count / most:.1f}"/>'
            for second, count in seconds.items()
        ]
    names = sorted({name for sample in samples for name in sample.owners if name})
    colour_of = dict(zip(names, COLOURS, strict=False))
    for sample, after in zip(samples, [*samples[1:], Sample(ended, ())], strict=True):
        parts += [
            f'<rect x="{x(sample.at)}" y="{230 + LANE * shard}" width="{x(after.at) - x(sample.at) + 0.5}" '
            f'height="{LANE - 2}" fill="{colour_of.get(owner, "#222")}"><title>{owner}</title></rect>'
            for shard, owner in enumerate(sample.owners)
        ]
    legend = ", ".join(f'<b style="color:{colour}">{name}</b>' for name, colour in colour_of.items())
    rows = "".join(
        f"<tr><td>{each.fault.begun - begun:.1f}<td>{each.fault.ended - begun:.1f}"
        f"<td>{html.escape(str(each))}"
        for each in sorted(faults, key=lambda each: each.fault.begun)
    )
    found = "".join(f"<li>{html.escape(problem)}</li>" for problem in problems) or "<li>none</li>"
    path.write_text(
        f"<!doctype html><meta charset=utf-8><title>Chaos</title><style>text{{font:11px sans-serif}}</style>"
        f"<h1>{ended - begun:.0f} s, {len(faults)} faults, {len(done)} jobs</h1>"
        f"<p>Red bands: faults. Bars: jobs completed (green), requests without an answer (red), by second. "
        f"Lanes: who owned each shard ({legend}; black: nobody).</p>"
        f'<svg width="{WIDTH}" height="400">{"".join(parts)}</svg><h2>Broken promises</h2><ul>{found}</ul>'
        f"<h2>Faults</h2><table><tr><th>from, s<th>to, s<th>what, and what clients saw{rows}</table>"
    )
