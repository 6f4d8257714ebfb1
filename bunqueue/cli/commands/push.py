"""``bunqueue push``: adds a job, or one for each line of a file."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from bunqueue.errors import BunqueueError
from bunqueue.server.settings import SettingsError
from bunqueue.text import json_problem, plural

from ..framework import exits
from ..framework.session import Session
from ..framework.shared import verb
from ..framework.values import SPAN, QueueName, argument, data, option, span
from ..output.progress import advancing
from .job_options import FLAGS, given, with_job_options

if TYPE_CHECKING:
    from bunqueue.client.blocking.queue import Queue
    from bunqueue.client.options.job import NewJob

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)

BATCH = 1000
"""The most lines in one command ..."""
BATCH_BYTES = 4_000_000
"""... and the most bytes: a frame holds 64 MiB, and the progress bar should move."""
DEFAULT_NAME = "default"
MAX_NOTED = 20  # warnings of invalid jobs that are printed

Data = Annotated[Any, argument("[DATA]", "JSON, @FILE, or - for standard input. Default: null.", parser=data)]
Name = Annotated[str, option("--name", "-n", about="The name of the job. Default: default.", metavar="NAME")]
Key = Annotated[
    str | None,
    option(
        "--idempotency-key", about="Within five minutes, the same key does not add it again.", metavar="KEY"
    ),
]
Lines = Annotated[
    str | None,
    option("--lines", "-l", about="Add a job for each line of JSON; - is standard input.", metavar="FILE"),
]
Whole = Annotated[
    bool,
    option(
        "--whole", about='Each line is a whole job: {"name", "data", and options such as "max_attempts"}.'
    ),
]
WaitIfFull = Annotated[
    float | None,
    option(
        "--wait-if-full",
        about="How long to wait for room if the queue is bounded, and full. Default: not at all.",
        metavar=SPAN,
        parser=span,
    ),
]


@verb(
    app,
    """bunqueue push emails '{"to": "ada@example.com"}' --name welcome""",
    """bunqueue push emails '{"to": "ada@example.com"}' --delay 5m --priority 10 --max-attempts 5""",
    """bunqueue push reports @report.json --unique-key nightly""",
    """bunqueue push emails --lines emails.jsonl""",
    """generate | bunqueue push emails --lines - --whole""",
    patient=True,
)
@with_job_options(tuple(FLAGS))
def push(
    session: Session,
    queue: QueueName,
    data: Data = None,
    name: Name = DEFAULT_NAME,
    idempotency_key: Key = None,
    lines: Lines = None,
    whole: Whole = False,
    wait_if_full: WaitIfFull = None,
    **options: Any,
) -> None:
    """Add a job to a queue; with --lines, one for each line of a file.

    Prints the job's id; for a file, how many jobs were added, and how many existed already. If a line is
    invalid, the lines before it are added, and the error names it. With --idempotency-key you can repeat the
    whole file.
    """
    shared, target = given(options), session.queue(queue, wait_if_full or 0)
    if lines is not None:
        if data is not None:
            raise SettingsError("DATA: --lines says what to add; give one or the other")
        with _warnings_noted(session):
            _push_lines(session, target, lines, _Maker(name, shared, whole), idempotency_key)
        return
    if whole:
        raise SettingsError("--whole: it says what lines are; give --lines FILE, too")
    with _warnings_noted(session):
        job = target.add(name, data, idempotency_key=idempotency_key, **shared)
    existing = job.created is False
    sentence = f"{'there is a job already' if existing else 'added job'}: {job.id} in queue {queue}"
    facts = {"id": job.id, "queue": queue, "existing": existing}
    if job.conflict is not None and ("dedup" in shared or "unique" in shared):
        facts |= {"conflict": job.conflict, "holder": job.holder}
        sentence += f"; the job with its key, {job.holder}, was {job.conflict}" if not existing else ""
    session.out.done(sentence, facts, "id")


@contextmanager
def _warnings_noted(session: Session) -> Iterator[None]:
    """Print warnings of invalid jobs as notes."""
    from bunqueue.client.invalid_jobs import InvalidJobWarning

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", InvalidJobWarning)
        yield
    for each in found[:MAX_NOTED]:
        session.out.note(f"bunqueue: {each.message}")


class _Maker(NamedTuple):
    """Parses lines into jobs."""

    name: str
    options: Any
    whole: bool

    def job(self, line: bytes) -> NewJob:
        """The job of a line. Raises ValueError for a malformed one."""
        import msgspec

        from bunqueue.client.options.job import JobOptions, NewJob

        try:
            value: Any = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(json_problem(line, error)) from None
        if not self.whole:
            return NewJob(self.name, value, **self.options)
        if not isinstance(value, dict):
            raise ValueError('it is no object; give {"name": ..., "data": ...}')
        options = {**self.options, **value}
        name, payload = options.pop("name", self.name), options.pop("data", None)
        for unknown in options.keys() - JobOptions.__annotations__.keys():
            known = ", ".join(sorted(JobOptions.__annotations__))
            raise ValueError(f"there is no option {unknown!r}; there are name, data, {known}")
        return NewJob(name, payload, **options)


class _BadLine(Exception):
    def __init__(self, number: int, problem: object) -> None:
        super().__init__(str(problem))
        self.number = number


class _Pusher:
    """Sends jobs in batches, and counts them."""

    def __init__(self, queue: Queue, key: str | None) -> None:
        self.added = self.existing = 0
        self._queue = queue
        self._key = key
        self._batch: list[tuple[int, NewJob]] = []  # with the numbers of their lines
        self._size = 0

    def take(self, number: int, job: NewJob, size: int) -> None:
        """Add a job to the batch; send the batch if it is full. Raises _BadLine."""
        self._batch.append((number, job))
        self._size += size
        if len(self._batch) >= BATCH or self._size >= BATCH_BYTES:
            self.send()

    def send(self) -> None:
        """Send the batch. Raises _BadLine; the jobs before that line then remain in the batch."""
        if not self._batch:
            return
        first = self._batch[0][0]
        key = None if self._key is None else f"{self._key}:{first}"
        try:
            handles = self._queue.add_bulk([job for _, job in self._batch], idempotency_key=key)
        except ValueError as error:  # OptionError and PayloadError give the index in the batch, from 0
            found = re.search(r"\bjob (\d+)", str(error))
            index = int(found[1]) if found else 0
            number = self._batch[index][0]
            del self._batch[index:]
            raise _BadLine(number, re.sub(r"^job \d+: ", "", str(error))) from None
        self._batch, self._size = [], 0
        self.existing += sum(handle.created is False for handle in handles)
        self.added += sum(handle.created is not False for handle in handles)


def _push_lines(session: Session, queue: Queue, path: str, maker: _Maker, key: str | None) -> None:
    pusher = _Pusher(queue, key)
    with _opened(path) as file:
        try:
            _send_all(file, path, pusher, maker, f"adding to {queue.name}")
        except _BadLine as error:
            pusher.send()  # the valid ones before it
            text = f"{path}, line {error.number}: {error}"
            if not pusher.added + pusher.existing:
                raise SettingsError(f"{text}; nothing was added") from None
            session.out.note(f"bunqueue: {text}; the {plural(pusher.added)} before it are added")
            raise typer.Exit(exits.FAILED) from None
        except (BunqueueError, KeyboardInterrupt):
            session.out.note(f"bunqueue: {plural(pusher.added)} were added before this:")
            raise
    there = f", {plural(pusher.existing)} were there already" if pusher.existing else ""
    facts = {"queue": queue.name, "added": pusher.added, "existing": pusher.existing}
    session.out.done(f"added {plural(pusher.added)} to queue {queue.name}{there}", facts, "added")


def _send_all(file: IO[bytes], path: str, pusher: _Pusher, maker: _Maker, what: str) -> None:
    size = Path(path).stat().st_size if path != "-" and Path(path).is_file() else None
    with advancing(what, size, sizes=True) as advance:
        read = 0
        for number, line in enumerate(file, 1):
            read += len(line)
            if line.strip():
                try:
                    job = maker.job(line)
                except (ValueError, RecursionError) as error:
                    raise _BadLine(number, error) from None
                pusher.take(number, job, len(line))
                advance(read)
        pusher.send()


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        file = Path(path).open("rb")
    except OSError as error:
        raise SettingsError(f"--lines: {path!r} cannot be read: {error.strerror}") from None
    with file:
        yield file
