"""Made by scripts/unasync.py from client/queue/queue.py; do not edit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, get_args, overload

from msgspec import UNSET, UnsetType

from bunqueue.client.blocking.base import Client
from bunqueue.client.codecs.codec import Codec, secret_of
from bunqueue.client.connection import requests
from bunqueue.client.connection.caller import Caller
from bunqueue.client.connection.options import (
    ConnectionOptions,
    Duration,
    milliseconds,
    refused,
    span,
    unknown_option,
    whole_milliseconds,
)
from bunqueue.client.connection.tls import Tls
from bunqueue.client.invalid_jobs import warn_of
from bunqueue.client.models import jobs as replies
from bunqueue.client.models.jobs import Job, JobCounts, JobProgress, PulledJob
from bunqueue.client.models.views import DeadLetter, DeadLetters, RetriedCount, TakenJob
from bunqueue.client.options import checks
from bunqueue.client.options.checks import given, given_span, whole
from bunqueue.client.options.cron import CronOptions, cron_command, sent_data
from bunqueue.client.options.job import (
    JobOptions,
    NewJob,
    bulk_fields,
    check_size,
    default_fields,
    job_data,
    of_job,
    pair,
    wire_fields,
)
from bunqueue.client.options.moments import PastMoment, When, age, past_moment, time_left
from bunqueue.client.options.unique import keyed
from bunqueue.client.blocking.queue.breakers import Breakers
from bunqueue.client.blocking.queue.crons import NamedCrons
from bunqueue.client.blocking.queue.error_groups import ErrorGroups
from bunqueue.client.blocking.queue.functions import Functions
from bunqueue.client.blocking.queue.groups import JobGroup
from bunqueue.client.blocking.queue.handle import JobHandle
from bunqueue.client.blocking.queue.search import Search
from bunqueue.client.blocking.queue.settings import QueueSettings
from bunqueue.client.blocking.queue.webhooks import ServerWebhooks, WebhookEvent
from bunqueue.client.blocking.queue.whole_job import whole_job
from bunqueue.client.blocking.queue.workflow import WorkflowHandle
from bunqueue.client.blocking.server_calls import ServerCalls
from bunqueue.errors import BunqueueError, CommandFailed, JobNotFound
from bunqueue.model.dead_letters import CAUSES, REASONS, DlqConfig
from bunqueue.model.job import DEFAULT_LOCK_TTL_MS
from bunqueue.model.stall import StallConfig
from bunqueue.protocol.commands import (
    core,
    dedup,
    dlq,
    events,
    groups,
    insight,
    limits,
    monitoring,
    query,
    queues,
    stall,
)
from bunqueue.protocol.commands.core import JobFields, PlainFields, PlainPush, Pull, Push, PushBatch
from bunqueue.protocol.commands.cron import CronView
from bunqueue.protocol.commands.dlq import DlqStats, Dropped
from bunqueue.protocol.commands.insight import GroupView
from bunqueue.protocol.commands.limits import Limits
from bunqueue.protocol.commands.monitoring import (
    QueueDetails,
    QueueHistory,
)
from bunqueue.protocol.commands.stall import StallSettings
from bunqueue.protocol.commands.webhooks import WebhookInfo
from bunqueue.protocol.commands.workers import WorkerInfo
from bunqueue.worker.middleware import Around, Middleware, around_adding

if TYPE_CHECKING:
    from bunqueue.client.blocking.queue.take import Take

R = TypeVar("R")


PAGE = 500  # jobs per page when reading all jobs


Cleanable = Literal["waiting", "delayed", "prioritized", "paused", "completed", "failed"]


class DlqFilter(TypedDict, total=False):
    """Selects dead letters: all given conditions must apply."""

    reason: str | None
    """A `cause` or a `reason` of dead letters: see `JobOutcome`."""
    name: str | None
    """Jobs with this name."""
    error: str | None
    """Jobs whose error contains this text, ignoring case."""
    error_type: str | None
    """Jobs with an error of this class, with or without its module."""
    error_group: str | None
    """Jobs of this group of errors: see `error_groups`."""
    older_than: PastMoment | None
    """Jobs that failed before this moment: a datetime with a time zone, a timedelta (so long ago), or ms
    since the epoch.
    """
    newer_than: PastMoment | None
    """Jobs that failed after this moment, given in the same way."""
    retriable: bool | None
    """Jobs whose automatic retry is due."""
    expired: bool | None
    """Jobs that the next maintenance will remove."""


class Queue(
    Breakers,
    ErrorGroups,
    Functions,
    NamedCrons,
    QueueSettings,
    ServerWebhooks,
    Search,
    Client,
):
    """A queue on a server, or in this process with `embedded=True`.

        with Queue("emails") as queue:
            handle = queue.add("welcome", {"to": "a@example.com"}, delay=5_000)

    The server is at `host` and `port`, or at `url`, or at BUNQUEUE_URL, else at 127.0.0.1:6789. `token`
    authenticates to it; for `tls` see `Place`. `data_path` is where an embedded queue stores its jobs (None:
    in memory). `codec` is how payloads are encoded, see `Codec`. `default_job_options` apply to each job that
    does not override them; `middleware` wraps the adding of each. A push into a full queue (`set_bounds`) is
    retried for the time of `wait_if_full` before it raises QueueFull. The connection is made on first use,
    and shared with other queues of the same server.

    Every method raises BunqueueError (see `bunqueue.errors`). If one that changes something raises
    ConnectionLost or CommandTimeout, the change may have happened.
    """

    def __init__(
        self,
        name: str,
        *,
        host: str | None = None,
        port: int | str | None = None,
        token: str | None = None,
        url: str | None = None,
        tls: Tls | None = None,
        embedded: bool = False,
        data_path: str | os.PathLike[str] | None = None,
        connection: ConnectionOptions | None = None,
        codec: Codec | None = None,
        default_job_options: JobOptions | None = None,
        middleware: Iterable[Middleware] = (),
        wait_if_full: Duration = 0,
    ) -> None:
        self.name = checks.queue_name(name)
        self._defaults = default_fields(default_job_options)
        endpoint = checks.endpoint(host, port, token, embedded, data_path, connection, url, tls, codec)
        self._caller = Caller(endpoint)
        self._patience_s = span(wait_if_full, "wait_if_full") / 1000
        around = around_adding(middleware)
        self._around = Around(around) if around else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} at {self._caller.endpoint.address})"

    @property
    def _searched(self) -> str:
        return self.name

    @overload
    def handle(self, job_id: str) -> JobHandle[Any]: ...

    @overload
    def handle(self, job_id: str, result_type: type[R]) -> JobHandle[R]: ...

    def handle(self, job_id: str, result_type: Any = Any) -> JobHandle[Any]:
        """A handle for a job with a known id. The server is not asked whether it exists.

        With a `result_type` the job's result is converted to that type: a dataclass, an attrs class, a
        Pydantic model, a msgspec struct, a plain type. For the handle that `add` returns, use its
        `returning`.
        """
        return JobHandle(self._caller, self.name, job_id, result_type)

    def workflow(self, job_id: str, result_type: Any = Any) -> WorkflowHandle[Any]:
        """Like `handle`, for a workflow: the handle also has signals, steps and undo."""
        return WorkflowHandle(self._caller, self.name, job_id, result_type)

    # -- adding jobs

    def add(
        self,
        name: str,
        data: object = None,
        *,
        idempotency_key: str | None = None,
        **options: Unpack[JobOptions],
    ) -> JobHandle[Any]:
        """Add a job called `name`; it is stored when this returns. For the options see `JobOptions`.

        If a job with the same `unique_key` or `job_id` already exists, the handle is that job's, and its
        `created` is False. Its `conflict` says what `on_conflict` did.

        If the connection is lost, the command is repeated without adding a second job. Or ConnectionLost or
        CommandTimeout is raised; then the outcome is unknown. To be able to call it again safely, even after
        a crash of your own program, give an `idempotency_key`: for five minutes the same key adds nothing
        more to this queue, and returns the handle of the first job, with `created` False. Using the key with
        another name or other data raises CommandFailed; other options are not compared.

        Raises OptionError for an invalid option, and PayloadError if `data` cannot be encoded.
        """
        if self._around is not None:
            made = [NewJob(name, data, **options)]
            (handle,) = self._add_inside(self._around, made, idempotency_key)
            return handle
        command = self._push(name, data, options, idempotency_key)
        reply = self._caller.add(command, self._patience_s)
        return self._handle(command, reply)

    def add_bulk(
        self, jobs: Iterable[NewJob | tuple[str, object]], *, idempotency_key: str | None = None
    ) -> list[JobHandle[Any]]:
        """Add many jobs, `NewJob` or `(name, data)`, at once: all of them, or none if one is refused.

        The handles come in the order of the jobs. The `idempotency_key` applies to all of them together.
        Raises the same errors as `add`. The jobs must fit into 64 MiB together, and be at most 100,000.
        """
        if self._around is not None:
            made = [
                job if isinstance(job, NewJob) else NewJob(*pair(index, job))
                for index, job in enumerate(jobs)
            ]
            return self._add_inside(self._around, made, idempotency_key)
        command = self._push_batch(jobs, idempotency_key)
        if not command.jobs:
            return []
        reply = self._caller.add(command, self._patience_s)
        return self._handles(command, reply)

    def _handle(self, job: Push | PlainPush, reply: core.PushReply) -> JobHandle[Any]:
        created = reply.existing is UNSET
        # JobHandle[Any](...) would take longer than everything else about it.
        handle: JobHandle[Any] = JobHandle(self._caller, self.name, reply.id, Any, created)
        if reply.conflict or not created:
            handle._met(job, reply.conflict or None)
        if reply.warnings:
            warn_of(reply.warnings)
        return handle

    def _handles(self, command: PushBatch, reply: core.PushBatchReply) -> list[JobHandle[Any]]:
        caller, queue, there = self._caller, self.name, frozenset(reply.existing or ())
        handles: list[JobHandle[Any]] = [
            JobHandle(caller, queue, job_id, Any, index not in there)
            for index, job_id in enumerate(reply.ids)
        ]
        if there or reply.conflicts:
            conflicts = {each.index: each for each in reply.conflicts or ()}
            for index, (job, handle) in enumerate(zip(command.jobs, handles, strict=True)):
                handle._met(job, conflicts.get(index))
        if reply.warnings:
            warn_of(reply.warnings)
        return handles

    def _push(
        self, name: str, data: object, options: Mapping[str, object], key: str | None
    ) -> Push | PlainPush:
        payload = job_data(data, "the data of the job")
        fields = wire_fields(options, self._defaults)
        if not fields and key is None:
            checks.job_name(name)
            return PlainPush(queue=self.name, name=name, data=payload, idempotency_key=self._key(None))
        fields = keyed(fields, name, payload, self._secret)
        if "size_limit" in fields:
            check_size(payload, fields, "the data of the job")
        return Push(
            queue=self.name,
            name=checks.job_name(name),
            data=payload,
            idempotency_key=self._key(key),
            idempotency_hash=None if key is None else requests.content_hash([(name, payload)]),
            **fields,
        )

    def _push_batch(self, jobs: Iterable[NewJob | tuple[str, object]], key: str | None) -> PushBatch:
        entries: list[Any] = []  # JobFields, or PlainFields
        defaults, secret = self._defaults, self._secret
        for index, job in enumerate(jobs):
            name, data = (job.name, job.data) if isinstance(job, NewJob) else pair(index, job)
            payload = job_data(data, index)
            fields = defaults
            if defaults or isinstance(job, NewJob):
                fields = bulk_fields(index, job, name, payload, defaults, secret)
                if "size_limit" in fields:
                    check_size(payload, fields, of_job(index))
            checks.job_name(name, index)
            if fields:
                entries.append(JobFields(name=name, data=payload, **fields))
            else:
                entries.append(PlainFields(name=name, data=payload))
        given = None if key is None else requests.content_hash((job.name or "", job.data) for job in entries)
        return PushBatch(
            queue=self.name, jobs=entries, idempotency_key=self._key(key), idempotency_hash=given
        )

    @property
    def _secret(self) -> bytes:
        return secret_of(self._caller.endpoint.codec)

    def _key(self, given: str | None) -> str | None:
        """The key that identifies a repeated push; None for an engine in this process, which
        cannot be lost.
        """
        if given is not None:
            return checks.idempotency_key(given)
        return None if self._caller.endpoint.embedded else requests.new_key()

    def _add_inside(
        self, around: Around, jobs: list[NewJob], key: str | None
    ) -> list[JobHandle[Any]]:
        """Add jobs with middleware around the call."""
        handles: list[JobHandle[Any]] = []

        def send() -> None:
            if len(jobs) == 1:
                command = self._push(jobs[0].name, jobs[0].data, jobs[0].options, key)
                reply = self._caller.add(command, self._patience_s)
                handles.append(self._handle(command, reply))
            else:
                batch = self._push_batch(jobs, key)
                many = self._caller.add(batch, self._patience_s)
                handles.extend(self._handles(batch, many))
            for job, handle in zip(jobs, handles, strict=True):
                job.id = handle.id

        for job in jobs:
            job.queue = self.name
        if jobs:
            around.add(jobs, send)
        return handles

    # -- taking jobs manually, where a `Worker` does not fit: in scripts, or between other loops

    def pull(
        self,
        timeout: Duration = 0,
        *,
        owner: str | None = None,
        lock: Duration = DEFAULT_LOCK_TTL_MS,
    ) -> TakenJob | None:
        """Take the next job, waiting up to `timeout` for one, at most a minute. Returns None if no job came.

        Report its end with `handle(id).complete()` or `fail()`. The job stays active when the connection or
        this program ends. With an `owner` it is locked for the time of `lock`: reports on it need its lock
        token, and `heartbeat()` renews the lock. Without an owner the queue's stall time applies.

        A job whose data cannot be read becomes a dead letter, and CommandFailed is raised.
        """
        command = Pull(
            queue=self.name,
            timeout=milliseconds(timeout, "timeout"),
            owner=owner,
            lock_ttl=whole_milliseconds(lock, "lock"),
            detach=True,
            group=core.FAIR,
        )
        reply = self._caller.call(checks.checked(command, lock_ttl="lock"), PulledJob)
        job = reply.job
        if job is None:
            return None
        if job.unreadable:
            text = f"the job's {job.unreadable}"
            self.handle(job.id).fail(text, lock_token=reply.token, unrecoverable=True)
            raise CommandFailed(f"job {job.id} of queue {self.name} is a dead letter now: {text}")
        return TakenJob(job, reply.token)

    def take(
        self,
        timeout: Duration = 0,
        *,
        lock: Duration = DEFAULT_LOCK_TTL_MS,
    ) -> Take:
        """Take one job and work on it in a block; for programs that are not workers.

            with queue.take(timeout=5_000) as job:
                if job is not None:
                    job.result = work(job.data)

        Waits up to `timeout` for a job, at most a minute; `job` is None if no job came. The job's lock is
        renewed while the block runs. At the end of the block the job completes, with its `result`. An
        exception fails the attempt and is raised again; `Retry`, `Postpone` and `Unrecoverable` mean the same
        as in a worker. If the program is ended instead, by a cancellation or Ctrl-C, the job is given back,
        and the attempt does not count. Raises LockLost if another worker got the job in the meantime.
        """
        # Imported here: it needs most of a worker, a sixth of the time that the import of the client takes.
        from bunqueue.client.blocking.queue.take import Take

        wait, lasting = milliseconds(timeout, "timeout"), whole_milliseconds(lock, "lock")
        return Take(self._caller, self, wait, lasting)

    # -- its jobs

    def get_job(self, job_id: str) -> Job | None:
        """The job, or None if it does not exist."""
        try:
            return whole_job(self._caller, checks.checked(query.GetJob(id=job_id), id="job_id"))
        except JobNotFound:
            return None

    def get_job_by_custom_id(self, custom_id: str) -> Job | None:
        """The job with this id chosen by its adder, if it has not ended; else None."""
        try:
            return whole_job(self._caller, checks.checked(query.GetJobByCustomId(custom_id=custom_id)))
        except JobNotFound:
            return None

    def get_jobs(
        self,
        state: str | Sequence[str] | None = None,
        *,
        limit: int = 100,
        offset: int = 0,
        newest_first: bool = False,
    ) -> list[Job]:
        """Jobs of one state, of several, or all, in the order in which they were made; `limit` is at most
        10,000. States are those of `JobCounts`. If a result is too large to be sent together with its job, it
        is left out, and the job's `result_bytes` has its size.
        """
        command = self._listing(state, newest_first, limit=limit, offset=offset)
        jobs: list[Job] = []
        more = True
        while more:  # large jobs come a few at a time
            command.limit, command.offset = limit - len(jobs), offset + len(jobs)
            reply = self._caller.call(command, replies.ManyJobs)
            jobs += reply.jobs
            more = reply.more and len(jobs) < limit
        return jobs

    def _listing(self, state: str | Sequence[str] | None, newest_first: bool, **fields: Any) -> query.GetJobs:
        states = [state] if isinstance(state, str) else list(state or ())
        checks.states(JobCounts.__struct_encode_fields__, states)
        return checks.checked(
            query.GetJobs(queue=self.name, state=states or None, asc=not newest_first, **fields)
        )

    def iter_jobs(
        self, state: str | Sequence[str] | None = None, *, newest_first: bool = False, page: int = PAGE
    ) -> Iterator[Job]:
        """All jobs of some states, read page by page: for loops over more jobs than fit in memory.

        A job that exists in these states the whole time is returned exactly once, whatever happens to other
        jobs: each page begins after the last job of the previous one.
        """
        checks.whole("page", page)
        command = self._listing(state, newest_first, limit=page, cursor="")
        while True:
            reply = self._caller.call(command, replies.ManyJobs)
            for job in reply.jobs:
                yield job
            if reply.cursor is not None:
                command.cursor = reply.cursor
            elif reply.more or len(reply.jobs) == page:  # from a server without cursors
                command.offset += len(reply.jobs)
            else:
                return

    def get_state(self, job_id: str) -> str:
        """The state of a job, "unknown" if it does not exist; see `JobHandle.state`."""
        return self.handle(job_id).state()

    def get_result(self, job_id: str) -> Any:
        """The handler's result; None if the job has not completed or no longer exists. It does not wait:
        `handle(job_id).result()` does.
        """
        reply = self._caller.call(
            checks.checked(query.GetResult(id=job_id), id="job_id"), replies.Outcome
        )
        return reply.result

    def progress(self, job_id: str) -> JobProgress:
        """The progress of a job, see `JobHandle.progress`. Raises JobNotFound."""
        return self.handle(job_id).progress()

    def counts(self) -> JobCounts:
        """The number of jobs in each state."""
        reply = self._caller.call(query.GetJobCounts(queue=self.name), replies.CountsOfJobs)
        return reply.counts

    def count(self) -> int:
        """The number of jobs in the queue, in all states."""
        command = query.Count(queue=self.name, everything=True)
        return (self._caller.call(command)).count

    def counts_per_priority(self) -> dict[int, int]:
        """The number of waiting and delayed jobs, by priority."""
        command = queues.GetCountsPerPriority(queue=self.name)
        reply = self._caller.call(command)
        return {int(priority): count for priority, count in reply.counts.items()}

    # -- pausing, emptying and deleting it

    def pause(self) -> None:
        """Stop handing out jobs until `resume`; everything else continues. A pause survives a restart."""
        self._caller.call(queues.Pause(queue=self.name))

    def resume(self) -> None:
        """Hand out jobs again."""
        self._caller.call(queues.Resume(queue=self.name))

    def is_paused(self) -> bool:
        """Whether the queue is paused."""
        reply = self._caller.call(queues.IsPaused(queue=self.name))
        return reply.paused

    def drain(self) -> int:
        """Remove all waiting and delayed jobs, except those that wait for others; returns their number."""
        reply = self._caller.call(queues.Drain(queue=self.name))
        return reply.count

    def clean(
        self, older_than: When = 0, *, state: Cleanable | None = None, limit: int = 1000
    ) -> list[str]:
        """Remove jobs of a state that are older than a span (ms or a timedelta) or a moment (a datetime with
        a time zone), oldest first, at most `limit`; returns their ids.

        Without a state, waiting and delayed jobs. These age from when they were added, completed jobs from
        their completion, failed ones from their last attempt. `limit` is at most 1,000,000.
        """
        checks.states(get_args(Cleanable), [] if state is None else [state])
        grace = age(older_than, "older_than")
        command = queues.Clean(queue=self.name, grace=grace, state=state, limit=limit)
        reply = self._caller.call(checks.checked(command, grace="older_than"))
        return reply.ids

    def obliterate(self) -> None:
        """Remove the queue: its jobs in all states, including active ones, and all its settings."""
        self._caller.call(queues.Obliterate(queue=self.name))

    def promote_jobs(self, count: int | None = None) -> int:
        """Let delayed jobs run now: all, or the `count` that were added first. Returns their number."""
        command = checks.checked(queues.PromoteJobs(queue=self.name, count=count))
        reply = self._caller.call(command)
        return reply.count

    def retry_completed(
        self, job_id: str | None = None, *, count: int | None = None, before: PastMoment | None = None
    ) -> int:
        """Run completed jobs again and discard their results: one job, or the oldest `count` of those that
        had completed before a moment (a datetime with a time zone, a timedelta (so long ago), or ms since the
        epoch), or all. Returns their number.
        """
        timestamp = None if before is None else past_moment(before, "before")
        command = dlq.RetryCompleted(queue=self.name, id=job_id, count=count, timestamp=timestamp)
        reply = self._caller.call(checks.checked(command, id="job_id", timestamp="before"))
        return reply.count

    def trim_events(self, keep: int) -> int:
        """Delete all but the last `keep` events of the queue from the server's log. Returns how many."""
        command = events.TrimEvents(queue=self.name, max_length=keep)
        reply = self._caller.call(checks.checked(command, max_length="keep"))
        return reply.data.removed

    # -- dead letters

    def dlq(self, count: int = 1000) -> list[Job]:
        """The jobs that failed for good, oldest first; at most `count`, which is at most 10,000."""
        wanted = dlq.DlqFilter()
        command = checks.checked(dlq.Dlq(queue=self.name, count=count, filter=wanted))
        jobs: list[Job] = []
        more = True
        while more:  # large jobs come a few at a time
            command.count, wanted.offset = count - len(jobs), len(jobs)
            reply = self._caller.call(command, replies.ManyJobs)
            jobs += reply.jobs
            more = reply.more and len(jobs) < count
        return jobs

    def dlq_entries(
        self, *, limit: int = 100, offset: int = 0, newest_first: bool = False, **which: Unpack[DlqFilter]
    ) -> list[DeadLetter]:
        """Dead letters with their attempts, oldest or newest first, selected by `DlqFilter`; at most 10,000.
        `iter_dlq` returns all.
        """
        wanted = checks.checked(dlq.DlqFilter(**_filter(which), limit=limit, offset=offset))
        if newest_first:
            end = max(0, self.count_dlq(**which) - offset)
            start = max(0, end - limit)
            return (self.dlq_entries(limit=end - start, offset=start, **which))[::-1]
        entries: list[DeadLetter] = []
        more = True
        while more:  # large jobs come a few at a time
            wanted.limit, wanted.offset = limit - len(entries), offset + len(entries)
            command = dlq.Dlq(queue=self.name, count=wanted.limit, filter=wanted)
            reply = self._caller.call(command, DeadLetters)
            entries += reply.entries
            more = reply.more and len(entries) < limit
        return entries

    def iter_dlq(self, *, page: int = PAGE, **which: Unpack[DlqFilter]) -> Iterator[DeadLetter]:
        """All dead letters that match `DlqFilter`, oldest first, read page by page. A dead letter that exists
        the whole time is returned exactly once, whatever happens to others.
        """
        checks.whole("page", page)
        wanted = checks.checked(dlq.DlqFilter(**_filter(which), limit=page, cursor=""))
        while wanted.cursor is not None:
            command = dlq.Dlq(queue=self.name, count=page, filter=wanted)
            reply = self._caller.call(command, DeadLetters)
            for entry in reply.entries:
                yield entry
            wanted.cursor = reply.cursor

    def count_dlq(self, **which: Unpack[DlqFilter]) -> int:
        """The number of dead letters, or of those that match `DlqFilter`."""
        wanted = checks.checked(dlq.DlqFilter(**_filter(which))) if which else None
        reply = self._caller.call(dlq.CountDlq(queue=self.name, filter=wanted))
        return reply.count

    def retry_dlq(
        self, job_id: str | None = None, *, count: int | None = None, **which: Unpack[DlqFilter]
    ) -> RetriedCount:
        """Give dead letters all their attempts again: one of them, or the oldest `count` of those that match
        `DlqFilter`, or all of the queue. Returns how many. Cancelled jobs are left out, and counted in
        `cancelled` of the result, unless you name them with `job_id` or `reason="cancelled"`. If all are
        meant, `dropped` of the result says how many no longer exist; see `dropped_dlq`.
        """
        wanted = checks.checked(dlq.DlqFilter(**_filter(which))) if which else None
        command = checks.checked(dlq.RetryDlq(queue=self.name, job_id=job_id, count=count, filter=wanted))
        reply = self._caller.call(command)
        retried = RetriedCount(reply.count)
        retried.cancelled = reply.cancelled or 0
        retried.dropped = reply.dropped.count if reply.dropped else 0
        return retried

    def purge_dlq(self, **which: Unpack[DlqFilter]) -> int:
        """Remove the selected dead letters, or all; returns their number."""
        wanted = checks.checked(dlq.DlqFilter(**_filter(which))) if which else None
        reply = self._caller.call(dlq.PurgeDlq(queue=self.name, filter=wanted))
        return reply.count

    def remove_dlq_job(self, job_id: str) -> bool:
        """Remove one dead letter; False if this queue does not have it."""
        command = checks.checked(dlq.RemoveDlqJob(queue=self.name, job_id=job_id))
        reply = self._caller.call(command)
        return reply.data.removed

    def dlq_stats(self) -> DlqStats:
        """Statistics of the dead letters."""
        reply = self._caller.call(dlq.GetDlqStats(queue=self.name))
        return reply.data.stats

    def dlq_config(self) -> DlqConfig:
        """How dead letters are kept and automatically retried."""
        reply = self._caller.call(dlq.GetDlqConfig(queue=self.name))
        return reply.config

    def dropped_dlq(self) -> Dropped:
        """The dead letters that were dropped automatically: how many because there were more than
        `max_entries`, how many because they were older than `max_age`, and when. `purge_dlq` resets this.
        """
        reply = self._caller.call(dlq.GetDlqConfig(queue=self.name))
        return reply.dropped

    def set_dlq_config(
        self,
        *,
        auto_retry: bool | None = None,
        auto_retry_interval: Duration | None = None,
        max_auto_retries: int | None = None,
        max_age: Duration | UnsetType | None = UNSET,
        max_entries: int | UnsetType | None = UNSET,
    ) -> None:
        """Change how dead letters are kept; settings that are not given stay the same.

        With `auto_retry`, jobs that fail for good from now on are retried every `auto_retry_interval`, at
        most `max_auto_retries` times. Dead letters older than `max_age` (None: never) are dropped once a
        minute; the oldest beyond `max_entries` (0: any number; None: the server's setting) at once.
        `dropped_dlq` counts them.
        """
        settings = dlq.DlqSettings(
            auto_retry=given(auto_retry),
            auto_retry_interval=given_span(auto_retry_interval, "auto_retry_interval"),
            max_auto_retries=given(max_auto_retries),
            max_age=None if max_age is None else given_span(max_age, "max_age"),
            max_entries=max_entries,
        )
        checks.settings(DlqConfig, settings)
        self._caller.call(dlq.SetDlqConfig(queue=self.name, config=settings))

    # -- limits
    # Limits apply to all workers together, and survive a restart.

    def set_rate_limit(self, limit: int, *, per: Duration = 1000, ttl: When | None = None) -> None:
        """Let `limit` jobs start in every `per` (ms or a timedelta). With a `ttl` the limit ends after that
        span, or at that moment (a datetime with a time zone).

        It is a token bucket: after a pause up to `limit` jobs start at once, and then one every `per /
        limit`, evenly. So up to twice the `limit` may start within a single `per`, and `limit` in each over
        the long run. (A group's limit is counted in windows.) To let no job start, `pause` the queue.

        Raises OptionError unless `limit` is a whole number, at least 1.
        """
        command = limits.RateLimit(
            queue=self.name,
            limit=_checked(limit),
            duration=whole_milliseconds(per, "per"),
            ttl=None if ttl is None else time_left(ttl, "ttl"),
        )
        self._caller.call(checks.checked(command, duration="per"))

    def clear_rate_limit(self) -> None:
        """Let jobs start as fast as workers take them."""
        self._caller.call(limits.RateLimitClear(queue=self.name))

    def set_concurrency(self, limit: int) -> None:
        """Allow at most `limit` active jobs at a time. To let none start, `pause` the queue.

        Raises OptionError unless `limit` is a whole number, at least 1.
        """
        command = limits.SetConcurrency(queue=self.name, limit=_checked(limit))
        self._caller.call(checks.checked(command))

    def clear_concurrency(self) -> None:
        """Allow any number of active jobs at a time."""
        self._caller.call(limits.ClearConcurrency(queue=self.name))

    def limits(self) -> Limits:
        """The limits that are set, and whether they currently hold jobs back."""
        reply = self._caller.call(limits.GetQueueLimits(queue=self.name))
        return reply.data.limits

    def stall_config(self) -> StallConfig:
        """When active jobs count as stalled."""
        reply = self._caller.call(stall.GetStallConfig(queue=self.name))
        return reply.config

    def set_stall_config(
        self,
        *,
        enabled: bool | None = None,
        stall_interval: Duration | None = None,
        max_stalls: int | None = None,
        grace_period: Duration | None = None,
    ) -> None:
        """Change when active jobs count as stalled; settings that are not given stay the same.

        A job without a sign of life for `stall_interval` returns to the queue; the `max_stalls`-th time it
        becomes a dead letter. The first `grace_period` of an attempt does not count.
        """
        settings = StallSettings(
            enabled=given(enabled),
            stall_interval=given_span(stall_interval, "stall_interval"),
            max_stalls=given(max_stalls),
            grace_period=given_span(grace_period, "grace_period"),
        )
        checks.settings(StallConfig, settings)
        self._caller.call(stall.SetStallConfig(queue=self.name, config=settings))

    # -- groups

    def group(self, group_id: str) -> JobGroup:
        """The jobs that were added with `group=group_id`. The server is not asked whether there are any."""
        return JobGroup(self._caller, self.name, checks.group_id(group_id))

    def list_groups(self, *, limit: int = 100, offset: int = 0) -> list[GroupView]:
        """The groups that have jobs or settings, by name; at most `limit`, which is at most 1000."""
        command = checks.checked(insight.ListGroups(queue=self.name, limit=limit, offset=offset))
        return (self._caller.call(command)).data.groups

    def grouped_count(self) -> int:
        """The number of queued jobs in all groups."""
        command = groups.GetGroupsJobsCount(queue=self.name)
        return (self._caller.call(command)).data.count

    # -- unique keys

    def get_unique_job_id(self, unique_key: str) -> str | None:
        """The id of the job that holds a `unique_key`; None if it is free."""
        command = dedup.GetDeduplicationJobId(queue=self.name, deduplication_id=unique_key)
        checks.checked(command, deduplication_id="unique_key")
        reply = self._caller.call(command)
        return reply.data.job_id

    def remove_unique_key(self, unique_key: str) -> bool:
        """Release a `unique_key`, so that another job may have it; False if it was free. The job that held it
        stays.
        """
        command = dedup.RemoveDeduplicationKey(queue=self.name, deduplication_id=unique_key)
        checks.checked(command, deduplication_id="unique_key")
        reply = self._caller.call(command)
        return reply.data.count > 0

    # -- schedules

    def upsert_cron(self, name: str, data: object = None, **options: Unpack[CronOptions]) -> CronView:
        """Have jobs with this `data` added on a schedule; for the options see `CronOptions`.

            queue.upsert_cron("nightly", {"full": True}, schedule="0 3 * * *", timezone="Europe/Rome")

        An existing schedule of this name is replaced. If its timing stays the same it continues undisturbed,
        so this may be called at every start of a program. Raises ScheduleConflict if the name belongs to
        another queue, unless `move` is True; OptionError for invalid options, including a malformed
        expression.
        """
        command = cron_command(self.name, name, data, options)
        reply = self._caller.call(command)
        reply.cron.data = sent_data(command)
        return reply.cron

    def list_crons(self) -> list[CronView]:
        """The schedules of this queue, by name, without the data of their jobs."""
        return self._crons(self.name)

    # -- webhooks

    def add_webhook(
        self, url: str, events: Iterable[WebhookEvent], *, secret: str | None = None
    ) -> str:
        """Have events of this queue sent to a URL. Returns the id of the webhook.

        Requests are signed with the `secret`. Raises CommandFailed for an address inside the network.
        """
        return self._add(url, events, secret, self.name)

    def list_webhooks(self) -> list[WebhookInfo]:
        """The webhooks that get the events of this queue, oldest first."""
        return self._webhooks(self.name)

    # -- figures and workers

    def list_workers(self) -> list[WorkerInfo]:
        """The registered workers of this queue."""
        return ServerCalls(self._caller).list_workers(self.name)

    def history(self, kind: Literal["completed", "failed"] = "completed") -> QueueHistory:
        """How many jobs of this queue completed, or failed, in each of the last minutes."""
        checks.one_of("kind", kind, ("completed", "failed"))
        command = monitoring.Metrics(queue=self.name, type=kind)
        reply = self._caller.call(command)
        if reply.data is UNSET:
            raise BunqueueError("Metrics: the server gave none; do client and server have the same version?")
        return reply.data

    def dashboard_queue(self) -> QueueDetails:
        """This queue in detail."""
        command = monitoring.DashboardQueue(queue=self.name)
        return (self._caller.call(command)).data


def _filter(which: DlqFilter) -> dict[str, Any]:
    """The filter in wire form. Raises OptionError."""
    for name in which:
        if name not in DlqFilter.__annotations__:
            raise unknown_option("a choice of dead letters", name, DlqFilter.__annotations__)
    if (reason := which.get("reason")) is not None:
        checks.one_of("reason", reason, tuple(dict.fromkeys((*CAUSES, *REASONS))))
    return {
        name: past_moment(value, name) if name in ("older_than", "newer_than") else value  # type: ignore[arg-type]
        for name, value in which.items()
        if value is not None
    }


def _checked(limit: int) -> int:
    if limit == 0 and not isinstance(limit, bool):
        why = "would let no job start; pause the queue for that, or give 1 or more"
        raise refused("limit", limit, why, 1)
    return whole("limit", limit)
