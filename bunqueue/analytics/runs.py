"""The public functions.  Each starts Spark if needed, and does one thing from beginning to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

from pyspark.sql import SparkSession

from bunqueue.analytics import compacting, exporting, files, inputs, lake, pipeline
from bunqueue.analytics.exporting import Exported
from bunqueue.analytics.facts import Source
from bunqueue.analytics.page import figures
from bunqueue.analytics.page.document import document
from bunqueue.analytics.pipeline import ALL, OnStep, Result, Wanted
from bunqueue.server.folder.data_folder import NAME as MANIFEST
from bunqueue.spark import BadOption, spark_session
from bunqueue.spark.read.remote import is_remote, shown
from bunqueue.spark.read.snapshots import is_live
from bunqueue.spark.sessions.start import is_local

REPORT = "report.html"


class From(NamedTuple):
    """Where to read from: data folders, with a name for the machine of each, or a lake."""

    folders: Sequence[str] = ()
    hosts: Sequence[str] = ()
    lake: str | None = None
    skip_unreadable: bool = False
    scratch: str | None = None  # where to copy folders that a server writes to; see `at_rest`

    def check(self) -> None:
        """Raise BadOption unless there is exactly one place and its hosts have names."""
        if bool(self.folders) == bool(self.lake):
            raise BadOption("data_dir: give data folders, or a lake, and not both")
        inputs.host_names(self.folders, self.hosts if self.folders else ())
        if self.lake and (self.hosts or self.skip_unreadable or self.scratch):
            what = "hosts" if self.hosts else "skip_unreadable" if self.skip_unreadable else "scratch"
            raise BadOption(f"{what}: of data folders only; a lake has all the hosts exported to it")
        if self.lake:
            lake.check(local("lake", self.lake))

    @contextmanager
    def at_rest(self, master: str = "local") -> Iterator[From]:
        """The same place, with no server writing to it: see `inputs.at_rest`.

        A cluster does not see a temporary folder of this machine, and a task that is repeated there would see
        another moment.  So BadOption is raised if a copy is needed and ``scratch`` is missing.
        """
        self.check()
        if not (is_local(master) or self.scratch):
            live = next(filter(is_live, self.folders), None)
            if live is not None:
                raise BadOption(
                    f"scratch: a server is writing to {live}, so a cluster reads a copy: give a folder for"
                    " that which all machines see, or the master local"
                )
            yield self
            return
        skip = self.skip_unreadable
        with inputs.at_rest(self.folders, self.scratch, skip_unreadable=skip) as folders:
            yield self._replace(folders=folders)

    def source(self, spark: SparkSession, asked: Wanted = ALL) -> tuple[Source, tuple[str, ...]]:
        """The tables, and the known gaps in the range.  Raises BadOption like `check`."""
        self.check()
        since = _ms(asked.since)
        if self.lake:
            folder = local("lake", self.lake)
            return lake.from_lake(spark, folder, since), lake.notes_of(folder, since, _ms(asked.until))
        skip = self.skip_unreadable
        found = inputs.from_folders(spark, self.folders, self.hosts, since=since, skip_unreadable=skip)
        return found, ()


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


def local(option: str, path: str | Path) -> Path:
    """A path of this machine.  Raises BadOption for an address."""
    if is_remote(str(path)):
        raise BadOption(f"{option}: {shown(str(path))} is an address; give a folder, such as a mounted one")
    return Path(path)


def writable(option: str, path: str | Path) -> Path:
    """A folder of this machine to write to, which need not exist yet.  Raises BadOption if it cannot be a
    folder."""
    folder = local(option, path)
    if (folder / MANIFEST).exists():
        raise BadOption(f"{option}: {folder} is a server's data folder; give another one")
    try:
        there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise BadOption(
            f"{option}: {folder} cannot be written to ({error.strerror}); give another folder"
        ) from None
    return folder


def silent(step: int, name: str) -> None:
    """An `OnStep` that reports nothing."""


def aggregate(
    place: From,
    out: str | Path,
    asked: Wanted = ALL,
    *,
    spark: SparkSession | None = None,
    on_step: OnStep = silent,
) -> Result:
    """Write all tables of a place to a folder, as Parquet and CSV; docs/analytics.md describes them."""
    return _written(place, writable("out", out), asked, spark, on_step, pipeline.MOST_STRETCHES)


def _written(
    place: From, folder: Path, asked: Wanted, spark: SparkSession | None, on_step: OnStep, most: int
) -> Result:
    spark = spark or spark_session()
    with place.at_rest(str(spark.sparkContext.master)) as still:
        source, notes = still.source(spark, asked)
        result = pipeline.aggregate(source, asked, notes=notes, on_step=on_step, most=most)
    files.write(folder, result.about, result.tables)
    return result


def report(
    place: From,
    out: str | Path,
    asked: Wanted = ALL,
    *,
    spark: SparkSession | None = None,
    on_step: OnStep = silent,
) -> Path:
    """Run `aggregate`, and write a page about its tables beside them.  Returns the page's path."""
    folder = writable("out", out)
    _written(place, folder, asked, spark, on_step, figures.MOST_STRETCHES)
    page = folder / REPORT
    files.write_whole(page, lambda path: path.write_text(document(files.read(folder)), encoding="utf-8"))
    return page


def export(
    place: From,
    out: str | Path,
    *,
    payload: bool = False,
    since: datetime | None = None,
    compact: bool = False,
    spark: SparkSession | None = None,
    on_step: OnStep = silent,
) -> Exported:
    """Add everything that has happened in data folders since the last time to a lake.  ``payload``: also the
    data.

    ``since``: for hosts that are new to the lake, only what ended then or later.  ``compact``: merge the
    files of past days afterwards, which disturbs readers of these files.
    """
    if not place.folders or place.lake:
        raise BadOption("data_dir: give the data folders to export")
    lake_folder = writable("out", out)
    spark = spark or spark_session()
    with place.at_rest(str(spark.sparkContext.master)) as still:
        found = exporting.export(
            spark,
            still.folders,
            lake_folder,
            hosts=place.hosts,
            payload=payload,
            since=_ms(since),
            skip_unreadable=place.skip_unreadable,
            on_step=on_step,
        )
    if compact:
        on_step(len(exporting.STEPS), "merging files of days that are over")
        compacting.compact(spark, lake_folder)
    return found
