"""Draws the screen of `top` from its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bunqueue import text as readable

from ...output.tables import NONE
from .numbers import RATES, ProcessNow, QueueNow, ServerNow, StoreNow

BARS = " ▁▂▃▄▅▆▇█"
SAMPLES = 40
"""The number of values in a sparkline."""
BESIDE_CHARTS = 64
"""The width, in characters, of the numbers left and right of the sparklines."""
OLD_MS, VERY_OLD_MS = 60_000, 600_000
"""The ages in ms from which a waiting job is coloured."""
MAX_WORKERS, MAX_PROCESSES = 8, 9
RATE_COLOURS = {"pushed": "blue", "pulled": "cyan", "completed": "green", "failed": "red"}
SORTS: dict[str, Callable[[QueueNow], Any]] = {
    "depth": lambda queue: (-(queue.waiting + queue.active + queue.delayed), queue.name),
    "oldest": lambda queue: (-queue.oldest, queue.name),
    "dead": lambda queue: (-queue.dlq, queue.name),
    "name": lambda queue: queue.name,
}


@dataclass(slots=True)
class Screen:
    """The state of the screen."""

    address: str
    sort: str = "depth"
    server: ServerNow | None = None
    workers: Sequence[Mapping[str, Any]] = ()
    paused: frozenset[str] = frozenset()
    problem: str | None = None
    history: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in RATES})

    def remember(self, server: ServerNow) -> None:
        """Store the newest numbers."""
        self.server = server
        for name in RATES:
            self.history[name] = [*self.history[name], server.rates[name]][-SAMPLES:]

    def next_sort(self) -> None:
        """Sort the queues by the next criterion."""
        names = list(SORTS)
        self.sort = names[(names.index(self.sort) + 1) % len(names)]


def draw(screen: Screen, width: int, height: int) -> RenderableType:
    """The screen, in this many columns and lines."""
    if screen.server is None:
        return Group(_head(screen, width), Text(screen.problem or "asking the server ..."))
    server = screen.server
    processes = _processes(server.processes[:MAX_PROCESSES], len(server.processes) - MAX_PROCESSES)
    workers = _workers(screen.workers)
    below: list[RenderableType] = [
        _title(f"workers ({len(screen.workers)})"),
        workers,
        _title("processes"),
        processes,
    ]
    used = 2 + len(RATES) + 1 + 3 + _height(workers) + _height(processes) + 4
    room = max(3, height - used)
    queues = _queues(screen, room)
    title = _title(f"queues ({len(server.queues) + server.omitted}), by {screen.sort}")
    return Group(_head(screen, width), _speeds(screen, width), title, queues, *below, _foot(screen))


def _height(table: Table) -> int:
    return table.row_count + 1


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _head(screen: Screen, width: int) -> RenderableType:
    line = Text.assemble(("bunqueue", "bold magenta"), " ", screen.address, no_wrap=True)
    if screen.server is not None:
        server = screen.server
        line.append(f"   version {server.version}   up {readable.span_of(server.uptime)}")
        line.append(f"   {readable.plural(server.connections, 'connection')}")
        if server.degraded:
            line.append("   not everything can be stored: bunqueue health", style="bold red")
    line.truncate(width, overflow="ellipsis")
    return line


def _speeds(screen: Screen, width: int) -> RenderableType:
    """Rates with their sparklines, and the counts and times of jobs beside them."""
    server = screen.server
    assert server is not None
    jobs = [(state, readable.number_of(server.jobs[state])) for state in ("waiting", "active", "delayed")]
    jobs.append(("dead", readable.number_of(server.jobs["dlq"])))
    times = [("waited", server.waited), ("worked", server.worked)]
    right = [(name, NONE if span is None else readable.span_of(span)) for name, span in times]
    right += [("kept", readable.number_of(server.jobs["completed"])), ("", "")]
    grid = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "right", "left", "left", "right", "left", "right"):
        grid.add_column(justify=justify, no_wrap=True)
    for name, (state, count), (what, amount) in zip(RATES, jobs, right, strict=True):
        chart = Text(spark(screen.history[name], width - BESIDE_CHARTS), style=RATE_COLOURS[name])
        label = "started" if name == "pulled" else name
        style = "red" if state == "dead" and count != "0" else ""
        grid.add_row(
            label, f"{_rate(server.rates[name])}/s", chart, state, Text(count, style=style), what, amount
        )
    return grid


def spark(values: Sequence[float], room: int = SAMPLES) -> str:
    """A sparkline, scaled to the highest value. If there is little room, it shows the newest values."""
    room = max(0, min(room, SAMPLES))
    values = values[len(values) - room :] if len(values) > room else values
    top = max(values, default=0.0)
    last = len(BARS) - 1
    drawn = "".join(BARS[0 if not value else max(1, round(value / top * last))] for value in values)
    return drawn.rjust(room)


def _rate(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _plain(headings: Iterable[str], left: int) -> Table:
    """A table whose first ``left`` columns are left-aligned texts."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(
            heading, justify="left" if number < left else "right", no_wrap=True, overflow="ellipsis"
        )
    return table


def _count(value: int | None, style: str = "") -> Text:
    return Text(NONE if value is None else f"{value:,}", style=style if value else "dim")


def _queues(screen: Screen, room: int) -> Table:
    assert screen.server is not None
    table = _plain(("queue", "waiting", "oldest", "delayed", "active", "dead", ""), 1)
    queues = sorted(screen.server.queues, key=SORTS[screen.sort])
    fitting = room if len(queues) + bool(screen.server.omitted) <= room else room - 1
    for queue in queues[:fitting]:
        old = "red" if queue.oldest >= VERY_OLD_MS else "yellow" if queue.oldest >= OLD_MS else ""
        oldest = Text(readable.span_of(queue.oldest) if queue.waiting else NONE, style=old or "dim")
        table.add_row(
            Text(queue.name),
            _count(queue.waiting),
            oldest if old or not queue.waiting else Text(readable.span_of(queue.oldest)),
            _count(queue.delayed, "yellow"),
            _count(queue.active, "cyan"),
            _count(queue.dlq, "red"),
            Text("paused" if queue.name in screen.paused else "", style="yellow"),
        )
    more = len(queues) - min(len(queues), fitting) + screen.server.omitted
    if more:
        table.add_row(Text(f"and {more:,} more", style="dim"))
    return table


def _workers(workers: Sequence[Mapping[str, Any]]) -> Table:
    table = _plain(("worker", "where", "queues", "active", "done", "failed", "heard"), 3)
    for worker in workers[:MAX_WORKERS]:
        active = f"{worker['activeJobs']} of {worker['concurrency']}"
        style = "red" if worker["status"] == "stale" else ""
        table.add_row(
            Text(readable.printable(worker["name"]), style=style),
            Text(readable.printable(f"{worker['hostname']}:{worker['pid']}")),
            Text(readable.printable(", ".join(worker["queues"]))),
            active,
            f"{worker['processedJobs']:,}",
            _count(worker["failedJobs"], "red"),
            Text(f"{readable.span_of(worker['silence'])} ago", style=style or "dim"),
        )
    if len(workers) > MAX_WORKERS:
        table.add_row(Text(f"and {len(workers) - MAX_WORKERS:,} more", style="dim"))
    return table


def _processes(processes: Sequence[ProcessNow], more: int) -> Table:
    headings = ["process", "waiting", "active", "pushed/s", "completed/s", "cpu", "memory", "on disk"]
    has_store = any(process.store for process in processes)
    table = _plain([*headings, "store"] if has_store else headings, 1)
    for process in processes:
        table.add_row(
            Text(
                process.name if process.up else f"{process.name} is down", style="" if process.up else "red"
            ),
            _count(process.waiting),
            _count(process.active),
            _rate(process.pushed),
            _rate(process.completed),
            NONE if process.cpu is None else f"{process.cpu:.0%}",
            readable.size_of(process.memory),
            NONE if process.disk is None else readable.size_of(process.disk),
            *([_store(process.store)] if has_store else []),
        )
    if more > 0:
        table.add_row(Text(f"and {more} more", style="dim"))
    return table


def _store(store: StoreNow | None) -> Text:
    """The commit time, unless something is wrong."""
    if store is None:
        return Text(NONE, style="dim")
    if store.unavailable:
        return Text("unavailable", style="bold red")
    return Text(readable.span_of(store.round_trip), style="" if store.protected else "yellow")


def _foot(screen: Screen) -> Text:
    if screen.problem:
        return Text(f"\n{screen.problem}", style="red", no_wrap=True, overflow="ellipsis")
    return Text.assemble("\n", ("q", "bold"), " quits   ", ("s", "bold"), " sorts by something else")
