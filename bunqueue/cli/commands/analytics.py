"""``bunqueue analytics``: statistics of queues, computed from data folders with DuckDB or Spark.

Talks to no server.  Arrow, DuckDB and Spark are loaded when a command runs.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from enum import StrEnum, auto
from traceback import walk_tb
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bunqueue.errors import BunqueueError, OptionError
from bunqueue.server.settings import SettingsError
from bunqueue.text import plural

from ..output import terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bunqueue.analytics.pipeline import OnStep

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)

_FOLDERS = typer.Option(
    "--data-dir",
    metavar="DIR",
    help="The data folder of a server, running or not, or a copy. Repeat it for more hosts.",
    show_default=False,
)
Folders = Annotated[list[str] | None, _FOLDERS]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        metavar="NAME",
        help="The host name of each --data-dir, in order. Default: this machine's name for one folder, the"
        " folders' names for several.",
        show_default=False,
    ),
]
Lake = Annotated[
    str | None,
    typer.Option("--lake", metavar="DIR", help="Read what export has written, instead of --data-dir."),
]
Out = Annotated[str, typer.Option("--out", metavar="DIR", help="The folder to write to.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="The start: 2026-01-31, 2026-01-31T12:00, 24h, 7d."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="The end, exclusive.")]
Bucket = Annotated[
    str | None,
    typer.Option(
        "--bucket",
        metavar="minute|hour|day",
        help="The length of a time bucket. Default: chosen by the range.",
    ),
]
Zone = Annotated[
    str, typer.Option("--tz", metavar="ZONE", help="The time zone of hours and days, such as Europe/Rome.")
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Compute with Spark, there: local[*], spark://HOST:7077. Default: without Spark, on this"
        " machine, unless spark-submit runs this.",
        show_default=False,
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="The most memory to use, such as 4g. Default: most of the machine's; for Spark 2g.",
        show_default=False,
    ),
]
Csv = Annotated[bool, typer.Option("--csv", help="Write each table as CSV too, for spreadsheets.")]
Dashboard = Annotated[
    str,
    typer.Option(
        "--dashboard",
        metavar="URL",
        help="The address of the dashboard, for links on the page; {host} in it is the host's name.",
    ),
]
Skip = Annotated[
    bool, typer.Option("--skip-unreadable", help="Skip shards that cannot be read, instead of failing.")
]


Scratch = Annotated[
    str | None,
    typer.Option(
        "--scratch",
        metavar="DIR",
        help="Where to copy the folders of running servers first. Default: the temporary folder.",
        show_default=False,
    ),
]


class Priority(StrEnum):
    """The CPU priority of a command."""

    low = auto()
    normal = auto()


Prioritized = Annotated[
    Priority | None,
    typer.Option(
        "--priority",
        help="low: use only idle CPU time. Default: low if a server is writing to a folder.",
        show_default=False,
    ),
]


Begun = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="For a host that is new to the lake: export only what ended from then on, in UTC.",
    ),
]
Compact = Annotated[
    bool,
    typer.Option(
        "--compact", help="Then merge the small files of past days. Do not use it while others read the lake."
    ),
]


@app.callback()
def _analytics() -> None:
    """Statistics, charts and history of queues."""


@app.command()
def export(
    out: Out,
    data_dir: Annotated[list[str], _FOLDERS],
    host: Hosts = None,
    payload: Annotated[
        bool, typer.Option("--payload", help="Include the data and results of jobs, as JSON.")
    ] = False,
    since: Begun = None,
    compact: Compact = False,
    delta: Annotated[
        bool, typer.Option("--delta", help="Also write Delta logs: the tables of the lake are Delta tables.")
    ] = False,
    skip_unreadable: Skip = False,
    priority: Prioritized = None,
) -> None:
    """Add what has happened since the last export to a lake of Parquet files.

    Run it daily or hourly, as servers delete old history. It is safe to interrupt and to repeat.

    Example: bunqueue analytics export --data-dir /var/lib/bunqueue --out lake
    """
    with _reporting() as on_step:
        from bunqueue.analytics import pipeline, runs

        place = runs.From(data_dir, host or (), None, skip_unreadable)
        begin = pipeline.wanted(since).since
        with _standing_back(priority, data_dir):
            found = runs.export(
                place, out, payload=payload, since=begin, compact=compact, delta=delta, on_step=on_step
            )
    counts = ", ".join(plural(found.rows[name], name.rstrip("s")) for name in ("jobs", "attempts", "events"))
    print(f"{counts} added to {out}")
    for gap in found.gaps:
        lost = plural(gap.last - gap.first + 1, "event")
        print(
            f"{lost} of shard {gap.shard} of {gap.host} had been forgotten before: export more often",
            file=sys.stderr,
        )
    for queue, count in found.missing.items():
        print(f"{plural(count)} of {queue} ended and were removed before: export more often", file=sys.stderr)


@app.command()
def aggregate(
    out: Out,
    data_dir: Folders = None,
    host: Hosts = None,
    lake: Lake = None,
    since: Since = None,
    until: Until = None,
    bucket: Bucket = None,
    tz: Zone = "UTC",
    csv: Csv = False,
    master: Master = None,
    memory: Memory = None,
    skip_unreadable: Skip = False,
    scratch: Scratch = None,
    priority: Prioritized = None,
) -> None:
    """Write tables of statistics as Parquet.

    Example: bunqueue analytics aggregate --data-dir /var/lib/bunqueue --out figures --since 7d
    """
    place = (data_dir or (), host or (), lake, skip_unreadable, scratch)
    machine = _Machine(master, memory, priority)
    tables = _figures("aggregate", place, out, (since, until, bucket, tz), machine, csv=csv).tables
    print(f"{len(tables)} tables written to {out}: " + ", ".join(tables))


@app.command()
def report(
    out: Out,
    data_dir: Folders = None,
    host: Hosts = None,
    lake: Lake = None,
    since: Since = None,
    until: Until = None,
    bucket: Bucket = None,
    tz: Zone = "UTC",
    csv: Csv = False,
    dashboard: Dashboard = "http://127.0.0.1:6790",
    master: Master = None,
    memory: Memory = None,
    skip_unreadable: Skip = False,
    scratch: Scratch = None,
    priority: Prioritized = None,
) -> None:
    """Write a page of charts that you can pass on, and the tables of aggregate beside it.

    Example: bunqueue analytics report --data-dir /var/lib/bunqueue --out report --tz Europe/Rome
    """
    place = (data_dir or (), host or (), lake, skip_unreadable, scratch)
    machine = _Machine(master, memory, priority)
    asked = (since, until, bucket, tz)
    print(_figures("report", place, out, asked, machine, csv=csv, dashboard=dashboard))


class _Machine(NamedTuple):
    """Where the figures are computed, with how much memory, and at which priority."""

    master: str | None
    memory: str | None
    priority: Priority | None

    @property
    def has_spark(self) -> bool:
        """Whether Spark computes them: if asked, or if spark-submit runs this."""
        return self.master is not None or "PYSPARK_GATEWAY_PORT" in os.environ

    @property
    def is_new(self) -> bool:
        """Whether Spark has to be started on this machine."""
        from bunqueue.spark.sessions.start import starts_here

        return starts_here(self.master)


def _figures(
    what: str,
    given: tuple[Any, ...],
    out: str,
    asked: tuple[Any, ...],
    machine: _Machine,
    **more: Any,
) -> Any:
    """Run `bunqueue.analytics.runs.aggregate` or ``report``.  Errors in the arguments are raised first."""
    with _reporting() as on_step:
        from bunqueue.analytics import pipeline, runs
        from bunqueue.spark.read import folders

        wanted = pipeline.wanted(*asked)
        place = runs.From(*given)
        place.check()
        runs.writable("out", out)
        if "dashboard" in more:
            runs.check_dashboard(more["dashboard"])
        if place.folders:
            folders.find_shards(place.folders, place.hosts)
        with (
            _standing_back(machine.priority, place.folders) as is_low,
            _spark(machine, is_low, on_step) if machine.has_spark else nullcontext() as spark,
        ):
            made = runs.Made(spark, machine.memory, on_step=on_step, **more)
            return getattr(runs, what)(place, out, wanted, made)


@contextmanager
def _standing_back(priority: Priority | None, folders: Sequence[str]) -> Iterator[bool]:
    """Leave the processor to others, if asked, or if a server writes to a folder.  Yields whether it does."""
    from bunqueue.spark.read.snapshots import is_live
    from bunqueue.spark.sessions.priority import standing_back

    is_low = priority is Priority.low or (priority is None and any(map(is_live, folders)))
    with standing_back() if is_low else nullcontext():
        yield is_low


def _with_flags(text: str) -> str:
    """A message with its leading argument name replaced by the flag of the command line."""
    name, colon, rest = text.partition(": ")
    return f"{_FLAGS[name]}{colon}{rest}" if name in _FLAGS else text


_FLAGS = {
    "data_dir": "--data-dir",
    "delta": "--delta",
    "hosts": "--host",
    "skip_unreadable": "--skip-unreadable",
    **{
        name: f"--{name}"
        for name in ("lake", "out", "since", "until", "bucket", "tz", "scratch", "memory", "dashboard")
    },
}


@contextmanager
def _reporting() -> Iterator[OnStep]:
    """Yield a callback that shows each step on standard error; turn errors into those of the command line."""
    try:
        from bunqueue.spark import NoJava, NotReadable
        from bunqueue.spark.sessions.errors import in_a_line

        with _progress() as on_step:
            yield on_step
    except ImportError as error:
        extra = "spark" if error.name in ("pyspark", "py4j") else "analytics"
        text = f"analytics need more packages ({error}): pip install 'bunqueue[{extra}]'"
        raise SettingsError(text) from None
    except (OptionError, NotReadable, NoJava) as error:
        raise SettingsError(_with_flags(str(error))) from None
    except KeyboardInterrupt:
        raise typer.Abort from None
    except Exception as error:
        if _was_interrupted(error):  # Spark raised another error as it was interrupted
            raise typer.Abort from None
        if not isinstance(error, OSError) and not type(error).__module__.startswith(("py4j.", "pyspark.")):
            raise
        raise BunqueueError(in_a_line(error)) from error


def _was_interrupted(error: BaseException) -> bool:
    """Whether the error was raised while Ctrl-C was being handled, by Python or by Spark's own handler, which
    calls Java first."""
    if any(frame.f_code.co_name == "signal_handler" for frame, _ in walk_tb(error.__traceback__)):
        return True
    while (before := error.__cause__ or error.__context__) is not None:
        if isinstance(before, KeyboardInterrupt):
            return True
        error = before
    return False


@contextmanager
def _spark(machine: _Machine, is_low: bool, on_step: OnStep) -> Iterator[SparkSession]:
    """Yield a Spark session."""
    from bunqueue.spark import spark_session

    on_step(f"starting Spark{', which stands back for the server' if is_low else ''}")
    logging.getLogger().addHandler(logging.NullHandler())  # Py4J logs the errors there that it also raises
    settings = {"spark__log__level": "OFF"} if machine.is_new else {}  # no tracebacks beside our error
    spark = spark_session(
        "bunqueue analytics",
        master=machine.master,
        spark__driver__memory=machine.memory or "2g",
        spark__ui__showConsoleProgress="false",
        **settings,
    )
    # Spark's own handler asks Java to cancel its jobs, which fails during another call to Java.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield spark


@contextmanager
def _progress() -> Iterator[OnStep]:
    """Show steps on standard error: the current one on a terminal, each finished one with its duration."""
    console = terminal.console(stderr=True)
    began, current = time.monotonic(), ""
    status = console.status("") if console.is_terminal else None

    def finish() -> None:
        if current:
            console.print(f"{time.monotonic() - began:6.1f} s  {current}")

    def on_step(name: str) -> None:
        nonlocal current, began
        finish()
        began, current = time.monotonic(), name
        if status is not None:
            status.update(name)

    if status is not None:
        status.start()
    try:
        yield on_step
        finish()
    finally:
        if status is not None:
            status.stop()
