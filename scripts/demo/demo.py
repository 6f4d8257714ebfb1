"""Shows bunqueue at work on real files, embedded and with a server, and checks the outcome.

    python scripts/demo/demo.py [--path FOLDER] [--limit FILES]

Each file is one job: SHA-256, size and, for .py and .txt, the number of lines. Text that is not UTF-8 and
files that cannot be read fail, are retried and become dead letters. Leaves nothing behind.

Exit status: 0 if everything adds up, 1 if not, 2 for a bad folder, 128 + the signal when interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import demo_run
from bunqueue import AsyncQueue, BunqueueError, Worker
from demo_processes import SHARDS, WORKERS, DemoError, server, workers
from demo_run import OPTIONS, Report
from demo_work import CONCURRENCY, QUEUES, Walk, handle, walk

FAILED = 1
BAD_USAGE = 2
LIMIT = 5_000  # files without --limit; two runs over them take about a quarter of a minute
LISTED = 5  # dead letters that are shown
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    top = options.path.expanduser().absolute()
    signals: list[int] = []
    try:
        found = look(top, options.limit)
        with tempfile.TemporaryDirectory(prefix="bunqueue-demo-") as folder:
            reports = asyncio.run(interruptible(both(found.files, Path(folder)), signals))
        return tell(reports, top)
    except BadFolder as error:
        return refuse(str(error), BAD_USAGE)
    except (DemoError, BunqueueError, OSError) as error:
        return refuse(str(error), FAILED)
    except (KeyboardInterrupt, asyncio.CancelledError):
        number = signals[0] if signals else signal.SIGINT
        return refuse("interrupted; everything is stopped", 128 + number)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    default = os.environ.get("DEMO_PATH") or sysconfig.get_path("stdlib")
    parser = argparse.ArgumentParser(description="Hash the files of a folder, one job a file.")
    parser.add_argument(
        "--path", type=Path, default=Path(default), help="the folder (default: Python's standard library)"
    )
    parser.add_argument("--limit", type=int, default=LIMIT, help=f"files at most (default: {LIMIT:,})")
    options = parser.parse_args(arguments)
    if options.limit < 1:
        parser.error("--limit must be at least 1")
    return options


class BadFolder(Exception):
    """There is nothing to work on; the text gives the reason in one line."""


def look(top: Path, limit: int) -> Walk:
    """The files to work on; prints what is left out."""
    try:
        found = walk(top, limit)
    except OSError as error:
        raise BadFolder(f"cannot look into {top}: {error.strerror}") from None
    if not found.files:
        raise BadFolder(f"there are no files in {top}")
    console.print(printable(f"{len(found.files):,} files in {top}, one job each"))
    if found.cut:
        console.print(f"There are more; --limit says how many are taken (now {limit:,}).")
    if found.skipped:
        console.print(f"{found.skipped:,} left out: no regular files, or their names are not UTF-8.")
    if found.closed:
        console.print(f"{found.closed:,} folders could not be opened.")
    return found


async def interruptible(work: Any, signals: list[int]) -> Any:
    """Do `work`; the first signal cancels it cleanly, so that it can clean up, later ones change nothing."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def stop(number: int) -> None:
        if not signals:
            signals.append(number)
            task.cancel()

    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            loop.add_signal_handler(number, stop, number)
    try:
        return await work
    finally:
        for number in STOPPING:
            if loop.remove_signal_handler(number) and signals:
                signal.signal(number, signal.SIG_IGN)  # only the message is left to print


async def both(files: list[str], folder: Path) -> list[Report]:
    return [await embedded(files, folder), await served(files, folder)]


async def embedded(files: list[str], folder: Path) -> Report:
    """Queues and workers in this process, on one SQLite file."""
    place: dict[str, Any] = {"embedded": True, "data_path": str(folder / "embedded.db")}
    troubles: list[str] = []
    async with AsyncExitStack() as stack:
        queues = await open_queues(stack, place)
        for name in QUEUES:
            worker = Worker(
                name,
                handle,
                concurrency=CONCURRENCY,
                on_failed=lambda job, error: None,  # dead letters are shown at the end
                on_error=lambda error: troubles.append(f"{type(error).__name__}: {error}"),
                **place,
            )
            await stack.enter_async_context(worker)
        with progress("embedded", len(files)) as advance:
            report = await demo_run.run(queues, files, advance, lambda: None)
    report.problems += troubles
    return report


async def served(files: list[str], folder: Path) -> Report:
    """A server with its shards, and worker processes."""
    async with AsyncExitStack() as stack:
        host, port, main_process = await stack.enter_async_context(server(folder))
        members = [main_process, *await stack.enter_async_context(workers(host, port))]
        queues = await open_queues(stack, {"host": host, "port": port})

        def check() -> None:
            for member in members:
                member.check()

        with progress("server", len(files)) as advance:
            return await demo_run.run(queues, files, advance, check)


async def open_queues(stack: AsyncExitStack, place: dict[str, Any]) -> dict[str, AsyncQueue]:
    return {
        name: await stack.enter_async_context(AsyncQueue(name, default_job_options=OPTIONS, **place))
        for name in QUEUES
    }


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar, if there is a terminal; call the yielded function with the number of finished jobs."""
    columns = (TextColumn("{task.description:>8}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    drawn = console.is_terminal and not console.is_dumb_terminal
    with Progress(*columns, console=console, transient=True, disable=not drawn) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done: bar.update(task, completed=done)


# -- the report at the end


def tell(reports: list[Report], top: Path) -> int:
    """Print the table, the dead letters, and whether everything adds up; return the exit status."""
    console.print(table(reports), soft_wrap=False)
    tell_dead_letters(reports[-1], top)
    problems = [problem for report in reports for problem in report.problems]
    if {one.path for one in reports[0].dead} != {one.path for one in reports[-1].dead}:
        problems.append("the dead letters of the two runs differ")
    for problem in problems:
        refuse(problem, FAILED)
    if problems:
        return FAILED
    console.print("Everything adds up: one job a file, and a sample of the results confirmed here.")
    return 0


def table(reports: list[Report]) -> Table:
    def ms(wait: int | None) -> str:
        return "-" if wait is None else f"{wait:,} ms"

    rows: list[tuple[str, Callable[[Report], str]]] = [
        ("jobs", lambda report: f"{report.jobs:,}"),
        ("ok", lambda report: f"{report.ok:,}"),
        ("failed (dead letters)", lambda report: f"{len(report.dead):,}"),
        ("retries", lambda report: f"{report.retries:,}"),
        ("bytes hashed", lambda report: decimal(report.bytes)),
        ("wall time", lambda report: f"{report.seconds:.2f} s"),
        ("jobs/s", lambda report: f"{report.jobs / report.seconds:,.0f}"),
        ("wait until start, p50", lambda report: ms(report.wait(0.5))),
        ("wait until start, p99", lambda report: ms(report.wait(0.99))),
    ]
    result = Table()
    result.add_column("")
    result.add_column("embedded", justify="right")
    result.add_column(f"server, {SHARDS} shards, {WORKERS} workers", justify="right")
    for title, cell in rows:
        result.add_row(title, *map(cell, reports))
    by_shard = reports[-1].shards
    result.add_row("jobs by shard", "-", " + ".join(f"{by_shard[shard]:,}" for shard in range(SHARDS)))
    return result


def tell_dead_letters(report: Report, top: Path) -> None:
    if not report.dead:
        console.print("No file failed, so there are no dead letters to show.")
        return
    console.print(f"Dead letters, after {demo_run.ATTEMPTS} attempts each:")
    for letter in report.dead[:LISTED]:
        console.print(printable(f"  {os.path.relpath(letter.path, top)}: {letter.reason}"))
    if len(report.dead) > LISTED:
        console.print(f"  and {len(report.dead) - LISTED:,} more")


def refuse(text: str, status: int) -> int:
    print("demo:", printable(" ".join(text.split())), file=sys.stderr)
    return status


def printable(text: str) -> str:
    """`text` in one line, without terminal control characters; names of files may hold anything."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(main())
