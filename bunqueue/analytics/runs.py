"""The public functions.  Each does one thing from beginning to end, with DuckDB, or with the Spark session
that it is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, NamedTuple

from bunqueue.analytics import compacting, exporting, files, inputs, lake, pipeline
from bunqueue.analytics.engine import Engine
from bunqueue.analytics.facts import Source
from bunqueue.analytics.lake_log import Commit
from bunqueue.analytics.page import figures
from bunqueue.analytics.page.document import document
from bunqueue.analytics.page.figures import DASHBOARD
from bunqueue.analytics.pipeline import ALL, OnStep, Result, Wanted, silent
from bunqueue.analytics.times import ms_of
from bunqueue.errors import OptionError
from bunqueue.server.folder.data_folder import NAME as MANIFEST
from bunqueue.spark.read.folders import host_names
from bunqueue.spark.read.remote import is_remote, shown
from bunqueue.spark.read.snapshots import is_live, snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORT = "report.html"


class From(NamedTuple):
    """Where to read from: data folders, with a name for the machine of each, or a lake."""

    folders: Sequence[str] = ()
    hosts: Sequence[str] = ()
    lake: str | None = None
    skip_unreadable: bool = False
    scratch: str | None = None  # where to copy folders that a server writes to

    def check(self) -> None:
        """Raise OptionError unless there is exactly one place and its hosts have names."""
        if bool(self.folders) == bool(self.lake):
            raise OptionError("data_dir: give data folders, or a lake, and not both")
        if self.folders:
            host_names(self.folders, self.hosts)
        if self.lake and (self.hosts or self.skip_unreadable or self.scratch):
            what = "hosts" if self.hosts else "skip_unreadable" if self.skip_unreadable else "scratch"
            raise OptionError(f"{what}: of data folders only; a lake has all the hosts exported to it")
        if self.lake:
            lake.check(local("lake", self.lake))

    @contextmanager
    def at_rest(self, master: str = "local") -> Iterator[From]:
        """The same place, with copies instead of the folders that a server writes to, as long as the block
        runs.  So all tables are of one moment, and no log grows while they are read.

        Raises NotReadable when there is no ``scratch``, or no room in it.  A cluster does not see a temporary
        folder of this machine, and a task that is repeated there would see another moment.  So OptionError is
        raised if it needs a copy and ``scratch`` is missing.
        """
        self.check()
        live = set(filter(is_live, self.folders))
        if live and not (master.startswith("local") or self.scratch):
            raise OptionError(
                f"scratch: a server is writing to {min(live)}, so a cluster reads a copy: give a folder for"
                " that which all machines see, or the master local"
            )
        with ExitStack() as copies:

            def still(folder: str) -> str:
                skip = self.skip_unreadable
                return copies.enter_context(snapshot(folder, self.scratch, skip_unreadable=skip))

            yield self._replace(folders=[still(each) if each in live else each for each in self.folders])

    def source(self, engine: Engine, asked: Wanted = ALL) -> tuple[Source, tuple[str, ...]]:
        """The tables, and the known gaps in the range.  Raises OptionError like `check`."""
        self.check()
        since = asked.read_since
        if self.lake:
            folder = local("lake", self.lake)
            begin, end = (None if at is None else ms_of(at) for at in (asked.since, asked.until))
            return lake.from_lake(engine, folder, since), lake.notes_of(folder, begin, end)
        skip = self.skip_unreadable
        return inputs.from_folders(engine, self.folders, self.hosts, since=since, skip_unreadable=skip)


def local(option: str, path: str | Path) -> Path:
    """A path of this machine.  Raises OptionError for an address."""
    if is_remote(str(path)):
        raise OptionError(f"{option}: {shown(str(path))} is an address; give a folder, such as a mounted one")
    return Path(path)


def writable(option: str, path: str | Path) -> Path:
    """A folder of this machine to write to, which need not exist yet.  Raises OptionError if it cannot be a
    folder."""
    folder = local(option, path)
    if (folder / MANIFEST).exists():
        raise OptionError(f"{option}: {folder} is a server's data folder; give another one")
    try:
        there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise OptionError(
            f"{option}: {folder} cannot be written to ({error.strerror}); give another folder"
        ) from None
    return folder


@contextmanager
def engine_of(
    spark: SparkSession | None, memory: str | None = None, scratch: str | None = None
) -> Iterator[Engine]:
    """Spark, if there is a session, or else DuckDB with at most that much ``memory``."""
    engine: Engine
    if spark is not None:
        from bunqueue.analytics.engines.spark import Spark

        engine = Spark(spark)
    else:
        from bunqueue.analytics.engines.duck import Duck

        engine = Duck(memory, scratch)
    try:
        yield engine
    finally:
        engine.close()


class Made(NamedTuple):
    """How tables are made and written.  ``spark``: the session that computes them, or None for DuckDB;
    ``memory``: of DuckDB, such as 4g; ``csv``: also as CSV; ``dashboard``: where the links of the page
    lead."""

    spark: SparkSession | None = None
    memory: str | None = None
    csv: bool = False
    dashboard: str = DASHBOARD
    on_step: OnStep = silent


DEFAULT = Made()


def aggregate(place: From, out: str | Path, asked: Wanted = ALL, made: Made = DEFAULT) -> Result:
    """Write all tables of a place to a folder, as Parquet; docs/analytics.md describes them."""
    return _written(place, writable("out", out), asked, made, pipeline.MOST_STRETCHES)


def _written(place: From, folder: Path, asked: Wanted, made: Made, most: int) -> Result:
    check_dashboard(made.dashboard)
    master = "local" if made.spark is None else made.spark.conf.get("spark.master") or ""
    with place.at_rest(master) as still, engine_of(made.spark, made.memory, place.scratch) as engine:
        source, notes = still.source(engine, asked)
        result = pipeline.aggregate(engine, source, asked, notes=notes, on_step=made.on_step, most=most)
    result = result._replace(about=result.about._replace(dashboard=made.dashboard))
    files.write(folder, *result, csv=made.csv)
    return result


def check_dashboard(address: str) -> None:
    """Raise OptionError unless it is an address that a page can link to."""
    if not address.startswith(("http://", "https://")):
        raise OptionError(f"dashboard: {address!r} is no address; give one such as {DASHBOARD}")


def report(place: From, out: str | Path, asked: Wanted = ALL, made: Made = DEFAULT) -> Path:
    """Run `aggregate`, and write a page about its tables beside them.  Returns the page's path."""
    folder = writable("out", out)
    text = document(files.figures_of(*_written(place, folder, asked, made, figures.MOST_STRETCHES)))
    page = folder / REPORT
    files.write_whole(page, lambda path: path.write_text(text, encoding="utf-8"))
    return page


def export(
    place: From,
    out: str | Path,
    *,
    payload: bool = False,
    since: datetime | None = None,
    compact: bool = False,
    delta: bool = False,
    on_step: OnStep = silent,
) -> Commit:
    """Add everything that has happened in data folders since the last time to a lake.  Returns what this run
    has added, and what it missed.  ``payload``: also the data.

    ``since``: for hosts that are new to the lake, only what ended then or later.  ``compact``: merge the
    files of past days afterwards, which disturbs readers of these files.  ``delta``: also write Delta logs:
    the lake's tables are Delta tables then.
    """
    if not place.folders or place.lake:
        raise OptionError("data_dir: give the data folders to export")
    lake_folder = writable("out", out)
    if delta:
        from bunqueue.analytics.delta import follow  # raises before anything is written
    found = exporting.export(
        place.folders,
        lake_folder,
        hosts=place.hosts,
        payload=payload,
        since=None if since is None else ms_of(since),
        skip_unreadable=place.skip_unreadable,
        on_step=on_step,
    )
    if compact:
        on_step("merging files of days that are over")
        compacting.compact(lake_folder)
    if delta:
        follow(lake_folder)
    return found
