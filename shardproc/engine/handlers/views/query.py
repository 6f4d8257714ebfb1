"""Queries for jobs: live ones in memory, finished ones in the archive."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial

from msgspec import UNSET, Raw

from bunqueue.model.job import (
    ACTIVE,
    BLOCKED,
    COMPLETED,
    DELAYED,
    FAILED,
    STATE_NAMES,
    SUSPENDED,
    WAITING,
    Job,
)
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Ok
from bunqueue.protocol.commands.query import (
    Count,
    CountReply,
    Counts,
    GetJob,
    GetJobCounts,
    GetJobs,
    GetProgress,
    GetResult,
    GetState,
    JobCountsReply,
    JobReply,
    JobsReply,
    Progress,
    ProgressReply,
    ResultReply,
    StateReply,
)
from bunqueue.protocol.job_view import job_list, queried_job, state_name, unreadable_job

from ...lifecycle import events
from ...lookup import explanation, find, known_job, known_queue, wrong_state
from ...outbox import UnreadableJob
from ...registry import handles
from ...slices import Steps, sliced
from ...state import Client, QueueState, State
from .paging import FINISHED, LIVE, Wanted, job_of, page

MAX_REPLY = 60 * 1024 * 1024  # bytes of jobs; a frame holds 64 MiB
MAX_PART = 16 * 1024 * 1024  # bytes of data or result shown of a job too large for a frame
SLICE = 50  # jobs added to a reply per slice: 0.7 ms if they are read from the file
ALL = LIVE | FINISHED
STATES = {
    "waiting": frozenset({WAITING}),
    "prioritized": frozenset({WAITING}),
    "delayed": frozenset({DELAYED}),
    "active": frozenset({ACTIVE}),
    "completed": frozenset({COMPLETED}),
    "failed": frozenset({FAILED}),
    "waiting-children": frozenset({BLOCKED, SUSPENDED}),
    "waiting-signal": frozenset({SUSPENDED}),
    "paused": frozenset({WAITING}),
}


class Shown:
    """Jobs as shown by queries, collected slice by slice."""

    def __init__(
        self,
        state: State,
        client: Client,
        name_of: Callable[[Job, int], str] = state_name,
        data_limit: int | None = None,
    ) -> None:
        self._version = client.version
        self._name_of = name_of
        self._data_limit = data_limit
        self._jobs: list[bytes] = []
        self.size = 0
        """Bytes of these jobs."""
        self.is_full = False
        """Whether a job did not fit into the frame with the others."""

    def add(self, job: Job) -> bool:
        """Add a job if it fits into the frame with the others; one that does not even fit alone is shown
        without its payload."""
        shown = self._shown(job)
        if not self.fits(len(shown)):
            return False
        self._jobs.append(shown)
        return True

    def _shown(self, job: Job) -> bytes:
        name = self._name_of(job, self._version)
        shown = queried_job(job, name, self._data_limit)
        return shown if len(shown) <= MAX_REPLY else queried_job(job, name, MAX_PART)

    def add_unreadable(self, queue: str, unreadable: UnreadableJob) -> bool:
        """Add a job that cannot be read."""
        job_id, name, created_at, state, why = unreadable
        shown = unreadable_job(job_id, queue, name, created_at, state, why)
        if not self.fits(len(shown)):
            return False
        self._jobs.append(shown)
        return True

    def fits(self, size: int) -> bool:
        """Reserve this many bytes in the reply; False if they do not fit, and then the reply is full."""
        if self._jobs and self.size + size > MAX_REPLY:
            self.is_full = True
            return False
        self.size += size
        return True

    def one(self) -> Raw:
        """The only job."""
        return Raw(self._jobs[0])

    def reply(self) -> JobsReply:
        """All jobs."""
        return JobsReply(jobs=job_list(self._jobs), more=self.is_full or UNSET)


@handles(GetJob)
def get_job(state: State, client: Client, command: GetJob) -> JobReply:
    job = known_job(state, command.id)
    answer = Shown(state, client, data_limit=command.data_limit)
    answer.add(job)
    return JobReply(job=answer.one())


@handles(GetState)
def get_state(state: State, client: Client, command: GetState) -> StateReply:
    job = find(state, command.id)
    name = "unknown" if job is None else state_name(job, client.version)
    why = explanation(state, command.id) if job is None else ""
    return StateReply(id=command.id, state=name, explanation=why or UNSET)


@handles(GetResult)
def get_result(state: State, client: Client, command: GetResult) -> ResultReply:
    job = find(state, command.id)
    result = job.result if job is not None and job.state == COMPLETED else None
    return ResultReply(id=command.id, result=UNSET if result is None else Raw(result))


@handles(GetJobs)
@sliced
def get_jobs(state: State, client: Client, command: GetJobs) -> Steps:
    queue = known_queue(state, command.queue)
    names = check_states(command.state)
    if queue is None:
        return JobsReply(jobs=job_list([]))
    states = _states(queue, names, client.version)
    wants = _wanted(queue, states, names, client.version)
    seqs: list[int] = []
    newest, after = not command.asc, int(command.cursor) if command.cursor else None
    for chunk in page(state.archive, queue, states, wants, command.offset, command.limit, newest, after):
        if chunk is None:
            yield
        else:
            seqs += chunk
    name_of = partial(listed_state, queue) if names else state_name
    answer = Shown(state, client, name_of, command.data_limit)
    last = yield from _add(state, queue, seqs, answer)
    reply = answer.reply()
    is_walk = command.cursor is not None
    if last is not None and (answer.is_full or (is_walk and len(seqs) == command.limit)):
        reply.cursor = str(last)
    return reply


def _add(
    state: State, queue: QueueState, seqs: list[int], answer: Shown
) -> Generator[None, None, int | None]:
    """Show these jobs, as many as fit; returns the number of the last one."""
    last = None
    for start in range(0, len(seqs), SLICE):
        if start:
            yield
        some = seqs[start : start + SLICE]
        finished = [seq for seq in some if job_of(queue, seq) is None]
        stored = state.archive.load(finished)
        unreadable = state.archive.unreadable(finished)
        for seq in some:
            job = job_of(queue, seq) or stored.get(seq)
            if job is not None:
                fits = answer.add(job)
            else:
                fits = seq not in unreadable or answer.add_unreadable(queue.name, unreadable[seq])
            if not fits:
                return last
            last = seq
    return last


def check_states(wanted: str | list[str] | None) -> list[str]:
    """The names of the requested states; empty for all.  CommandError for an unknown one."""
    names = [wanted] if isinstance(wanted, str) else wanted or []
    for name in names:
        if name not in STATES:
            raise CommandError(
                f"state {name[:64]!r} is unknown; there are {', '.join(STATES)}",
                Code.INVALID_FIELD,
                field="state",
                value=name,
                bound=", ".join(STATES),
            )
    return names


def _states(queue: QueueState, names: list[str] | None, version: int) -> frozenset[int]:
    """The states to search for these names; without names, all."""
    if not names:
        return ALL
    none: frozenset[int] = frozenset()
    found = none.union(*(STATES.get(name, none) for name in names if name != "paused" or queue.paused))
    return found | {BLOCKED} if version < 3 and WAITING in found else found


def _wanted(queue: QueueState, states: frozenset[int], names: list[str] | None, version: int) -> Wanted:
    """A test whether a live job is in one of the requested states."""
    if version >= 3 and names:
        return lambda job: job.state in states and listed_state(queue, job, version) in names
    if names and SUSPENDED in states:  # any version distinguishes these by what they wait for
        return lambda job: job.state in states and (job.state != SUSPENDED or state_name(job, 3) in names)
    return lambda job: job.state in states


def listed_state(queue: QueueState, job: Job, version: int) -> str:
    """The state under which a job of ``queue`` is listed; version 3 calls ready jobs of a paused queue
    paused."""
    if version >= 3 and queue.paused and job.state == WAITING:
        return "paused"
    return state_name(job, version)


@handles(GetJobCounts)
def get_job_counts(state: State, client: Client, command: GetJobCounts) -> JobCountsReply:
    queue = known_queue(state, command.queue)
    if queue is None:
        return JobCountsReply(counts=Counts(0, 0, 0, 0, 0))
    return JobCountsReply(counts=counts_of(queue, client.version))


def counts_of(queue: QueueState, version: int) -> Counts:
    """Jobs by state, as counted for a connection of that version."""
    counts = Counts(queue.waiting, len(queue.delayed), len(queue.active), queue.completed, queue.failed)
    children = len(queue.blocked) + len(queue.suspended) - queue.waiting_signal
    if queue.waiting_signal:
        counts.waiting_signal = queue.waiting_signal
    if version < 3:
        counts.waiting += children
    else:
        counts.waiting_children = children
        if queue.paused:
            counts.waiting, counts.paused = 0, queue.waiting
        else:
            counts.prioritized = queue.ready.prioritized()
            counts.waiting -= counts.prioritized
    return counts


@handles(Count)
def count(state: State, client: Client, command: Count) -> CountReply:
    queue = known_queue(state, command.queue)
    if queue is None:
        return CountReply(count=0)
    queued = queue.waiting + len(queue.delayed)
    if client.version >= 3 and not command.everything:
        return CountReply(count=queued)
    waiting = len(queue.blocked) + len(queue.suspended)
    return CountReply(count=queued + waiting + len(queue.active) + queue.completed + queue.failed)


def _active(state: State, job_id: str) -> Job:
    job = known_job(state, job_id)
    if job.state != ACTIVE:
        text = f"Job is not active (current state: {STATE_NAMES[job.state]})"
        raise wrong_state(job.id, text, "active")
    return job


@handles(Progress)
def progress(state: State, client: Client, command: Progress) -> Ok:
    job = _active(state, command.id)
    if command.progress != command.progress:  # NaN
        raise CommandError(
            "progress must be a number", Code.INVALID_FIELD, field="progress", value="NaN", bound="a number"
        )
    job.progress = min(100.0, max(0.0, command.progress))
    if command.message is not None:
        job.progress_message = command.message
    events.emit(state, events.PROGRESS, job, progress=job.progress, message=job.progress_message)
    state.out.touch(job)
    return Ok()


@handles(GetProgress)
def get_progress(state: State, client: Client, command: GetProgress) -> ProgressReply:
    job = _active(state, command.id)
    return ProgressReply(progress=job.progress, message=job.progress_message)
