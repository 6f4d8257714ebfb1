"""Runs the queue of docs/fairness.md and draws the order of its jobs.

    python scripts/fairness_picture.py            writes docs/images/fairness.svg
    python scripts/fairness_picture.py --check    fails if a run does not look like that picture

A tenant has 100,000 jobs waiting.  While one worker takes jobs one by one, two other tenants add theirs.
This runs twice, on an engine in this process: with jobs in no group, which start in order of arrival, and
with a group for each tenant.  Each square of the picture is a job that started.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from bunqueue import NewJob, Queue

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "fairness.svg"
WAITING = 100_000  # jobs of the first tenant
STARTS = 60  # number of starts that are drawn
LATER = {10: ("zeta", 8), 25: ("hooli", 4)}  # start -> the tenant that adds jobs before it, and how many
COLOURS = {"acme": "#7c8db5", "zeta": "#e07a3f", "hooli": "#2a9d7f"}
SIZE, GAP, LEFT, TOP = 13, 2, 150, 58

Run = list[str]  # the tenants of the jobs, in order of start


def starts(*, grouped: bool, waiting: int = WAITING) -> Run:
    """The tenants of the first jobs that start."""
    with Queue("orders", embedded=True) as queue:
        add(queue, "acme", waiting, grouped=grouped)
        return list(taken(queue, grouped=grouped))


def add(queue: Queue, tenant: str, count: int, *, grouped: bool) -> None:
    options: dict[str, str] = {"group": tenant} if grouped else {}
    for start in range(0, count, 20_000):
        some = min(20_000, count - start)
        queue.add_bulk([NewJob("ship", tenant, **options)] * some)  # type: ignore[arg-type]


def taken(queue: Queue, *, grouped: bool) -> Iterator[str]:
    for start in range(STARTS):
        if start in LATER:
            add(queue, *LATER[start], grouped=grouped)
        job = queue.pull()
        assert job is not None
        queue.handle(job.job.id).complete()
        yield job.job.data


def picture(plain: Run, fair: Run) -> str:
    """Both runs as an SVG; equal runs give equal text."""
    width = LEFT + STARTS * (SIZE + GAP) + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} 190" width="{width}" height="190"'
        ' font-family="system-ui, sans-serif" font-size="13">',
        f'<rect width="{width}" height="190" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" fill="#333333">The first {STARTS} jobs that start, one after the other;'
        f" acme has {WAITING:,} more waiting</text>",
    ]
    for row, (title, run) in enumerate((("without groups", plain), ("with groups", fair))):
        lines += _row(title, run, TOP + row * 46)
    lines += _legend(TOP + 2 * 46 + 12)
    return "\n".join([*lines, "</svg>\n"])


def _row(title: str, run: Run, y: int) -> Iterator[str]:
    yield f'<text x="12" y="{y + SIZE - 2}" fill="#333333">{title}</text>'
    for start, tenant in enumerate(run):
        x = LEFT + start * (SIZE + GAP)
        yield f'<rect x="{x}" y="{y}" width="{SIZE}" height="{SIZE}" rx="2" fill="{COLOURS[tenant]}"/>'
    for start, (tenant, count) in LATER.items():
        x = LEFT + start * (SIZE + GAP)
        yield f'<path d="M {x} {y - 12} v {SIZE + 14}" stroke="{COLOURS[tenant]}" stroke-width="1.5"/>'
        text = f"{tenant} adds {count}"
        yield f'<text x="{x + 4}" y="{y - 4}" fill="{COLOURS[tenant]}" font-size="11">{text}</text>'


def _legend(y: int) -> Iterator[str]:
    for place, (tenant, colour) in enumerate(COLOURS.items()):
        x = LEFT + place * 90
        yield f'<rect x="{x}" y="{y}" width="{SIZE}" height="{SIZE}" rx="2" fill="{colour}"/>'
        yield f'<text x="{x + SIZE + 6}" y="{y + SIZE - 2}" fill="#333333">{tenant}</text>'


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    checks = parser.parse_args(arguments).check
    drawn = picture(starts(grouped=False), starts(grouped=True))
    if not checks:
        PICTURE.write_text(drawn, encoding="utf-8")
        return 0
    if PICTURE.read_text(encoding="utf-8") != drawn:
        print(f"{PICTURE} is not what a run gives; run: python scripts/fairness_picture.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
