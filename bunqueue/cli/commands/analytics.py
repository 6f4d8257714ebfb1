"""``bunqueue analytics``: statistics of queues, computed from data folders with Spark.

Talks to no server.  Spark and Arrow are loaded when a command runs.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum, auto
from traceback import walk_tb
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bunqueue.errors import BunqueueError
from bunqueue.server.settings.settings import SettingsError
from bunqueue.text import plural

from ..output import terminal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bunqueue.analytics.pipeline import OnStep
    from bunqueue.analytics.runs import From

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
        "--master", metavar="URL", help="Where Spark runs. Default: local[*], or as spark-submit says."
    ),
]
Memory = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="Spark's memory on this machine, such as 4g.")
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
    """Statistics, charts and history of queues, with Spark."""


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
    master: Master = None,
    memory: Memory = "2g",
    skip_unreadable: Skip = False,
    scratch: Scratch = None,
    priority: Prioritized = None,
) -> None:
    """Add what has happened since the last export to a lake of Parquet files.

    Run it daily or hourly, as servers delete old history. It is safe to interrupt and to repeat.

    Example: bunqueue analytics export --data-dir /var/lib/bunqueue --out lake
    """
    given = (data_dir, host or (), None, skip_unreadable, scratch)
    machine = _Machine(master, memory, priority)
    with _reporting() as on_step:
        from bunqueue.analytics import pipeline, runs

        begin = pipeline.wanted(since).since
        with _ready(given, out, machine, on_step) as (place, spark):
            found = runs.export(
                place, out, payload=payload, since=begin, compact=compact, spark=spark, on_step=on_step
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
    master: Master = None,
    memory: Memory = "2g",
    skip_unreadable: Skip = False,
    scratch: Scratch = None,
    priority: Prioritized = None,
) -> None:
    """Write tables of statistics, each as Parquet and as CSV.

    Example: bunqueue analytics aggregate --data-dir /var/lib/bunqueue --out figures --since 7d
    """
    place = (data_dir or (), host or (), lake, skip_unreadable, scratch)
    machine = _Machine(master, memory, priority)
    tables = _figures("aggregate", place, out, (since, until, bucket, tz), machine).tables
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
    master: Master = None,
    memory: Memory = "2g",
    skip_unreadable: Skip = False,
    scratch: Scratch = None,
    priority: Prioritized = None,
) -> None:
    """Write a page of charts that you can pass on, and the tables of aggregate beside it.

    Example: bunqueue analytics report --data-dir /var/lib/bunqueue --out report --tz Europe/Rome
    """
    place = (data_dir or (), host or (), lake, skip_unreadable, scratch)
    machine = _Machine(master, memory, priority)
    print(_figures("report", place, out, (since, until, bucket, tz), machine))


class _Machine(NamedTuple):
    """Where Spark runs, with how much memory, and at which priority."""

    master: str | None
    memory: str
    priority: Priority | None

    @property
    def is_new(self) -> bool:
        """Whether Spark has to be started on this machine."""
        from bunqueue.spark.sessions.start import starts_here

        return starts_here(self.master)


def _figures(what: str, place: tuple[Any, ...], out: str, asked: tuple[Any, ...], machine: _Machine) -> Any:
    """Run `bunqueue.analytics.runs.aggregate` or ``report``."""
    with _reporting() as on_step:
        from bunqueue.analytics import pipeline, runs

        options = pipeline.wanted(*asked)
        with _ready(place, out, machine, on_step) as (place_at_rest, spark):
            return getattr(runs, what)(place_at_rest, out, options, spark=spark, on_step=on_step)


def _with_flags(text: str) -> str:
    """A message with its leading argument name replaced by the flag of the command line."""
    name, colon, rest = text.partition(": ")
    return f"{_FLAGS[name]}{colon}{rest}" if name in _FLAGS else text


_FLAGS = {
    "data_dir": "--data-dir",
    "hosts": "--host",
    "skip_unreadable": "--skip-unreadable",
    **{name: f"--{name}" for name in ("lake", "out", "since", "until", "bucket", "tz", "scratch", "memory")},
}


@contextmanager
def _reporting() -> Iterator[OnStep]:
    """Yield a callback that shows each step on standard error; turn errors into those of the command line."""
    try:
        from bunqueue.spark import BadOption, NoJava, NotReadable
        from bunqueue.spark.sessions.errors import in_a_line

        with _progress() as on_step:
            yield on_step
    except ImportError as error:
        raise SettingsError(f"analytics need Spark ({error}): pip install 'bunqueue[spark]'") from None
    except (BadOption, NotReadable, NoJava) as error:
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
def _ready(
    given: tuple[Any, ...], out: str, machine: _Machine, on_step: OnStep
) -> Iterator[tuple[From, SparkSession]]:
    """Yield where to read, and a Spark session. Folders of running servers are copied first, and everything
    after that runs at low priority. Errors in the arguments are raised before Spark starts."""
    from bunqueue.analytics import inputs, runs
    from bunqueue.spark import standing_back
    from bunqueue.spark.read import folders, snapshots

    place = runs.From(*given)
    place.check()
    if place.folders:
        folders.find_shards(place.folders, inputs.host_names(place.folders, place.hosts))
    is_live = any(map(snapshots.is_live, place.folders))
    if machine.is_new and is_live:
        on_step(-2, "copying what a server writes to")
    with place.at_rest() if machine.is_new else nullcontext(place) as found:
        runs.writable("out", out)
        is_low = machine.priority is Priority.low or (machine.priority is None and is_live)
        with standing_back() if is_low else nullcontext():
            on_step(-1, f"starting Spark{', which stands back for the server' if is_low else ''}")
            yield found, _session(machine)


def _session(machine: _Machine) -> SparkSession:
    from bunqueue.spark import spark_session

    logging.getLogger().addHandler(logging.NullHandler())  # Py4J logs the errors there that it also raises
    settings = {"spark__log__level": "OFF"} if machine.is_new else {}  # no tracebacks beside our error
    spark = spark_session(
        "bunqueue analytics",
        master=machine.master,
        spark__driver__memory=machine.memory,
        spark__ui__showConsoleProgress="false",
        **settings,
    )
    # Spark's own handler asks Java to cancel its jobs, which fails during another call to Java.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return spark


@contextmanager
def _progress() -> Iterator[OnStep]:
    """Show steps on standard error: the current one on a terminal, each finished one with its duration."""
    console = terminal.console(stderr=True)
    began, current = time.monotonic(), ""
    status = console.status("") if console.is_terminal else None

    def finish() -> None:
        if current:
            console.print(f"{time.monotonic() - began:6.1f} s  {current}")

    def on_step(step: int, name: str) -> None:
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
