"""Reading jobs and queues, and the progress of a job."""

from typing import Annotated

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bunqueue.model.marks import JOB, JOBS, Mark
from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    MAX_SAFE,
    Command,
    ContentText,
    IdOf,
    JobId,
    Message,
    Offset,
    OfJob,
    OfQueue,
    Ok,
    PageSize,
    Reply,
    Route,
    Tag,
    command,
    http,
)

StateNames = str | Annotated[list[str], Meta(max_length=16)]
DataLimit = Annotated[int, Meta(ge=0, le=MAX_SAFE)]
JobCursor = Annotated[str, Meta(pattern=r"^([0-9]{1,16})?$", max_length=16)]


class JobReply(Reply, kw_only=True):
    """If the result does not fit into a frame with the job, it is left out; the job then has
    ``returnvalueBytes``."""

    job: Annotated[Raw, JOB]


class StateReply(Reply, kw_only=True):
    """Version 2 has five states and ``unknown``; version 3 adds ``prioritized``.  ``explanation``, if
    present, says what happened to an ``unknown`` job: it was a dead letter, and was dropped recently."""

    id: IdOf
    state: str
    explanation: Annotated[ContentText, Mark.TEXT] | UnsetType = UNSET


class ResultReply(Reply, kw_only=True):
    """``result`` is the result in the ACK; it is absent if the ACK did not contain a result."""

    id: IdOf
    result: Raw | UnsetType = UNSET


class JobsReply(Reply, kw_only=True):
    """``more`` is true if the page is shorter than requested because its jobs are large.  ``cursor`` leads to
    the jobs after its last one."""

    jobs: Annotated[Raw, JOBS]  # encoded by protocol.job_view
    more: bool | UnsetType = UNSET
    cursor: str | UnsetType = UNSET


class CountReply(Reply, kw_only=True):
    count: int


class Counts(
    Struct, rename={"waiting_children": "waiting-children", "waiting_signal": "waiting-signal"}, gc=False
):
    """The number of jobs by state.  Version 2 counts all ready jobs as waiting.  ``waiting-signal`` is absent
    if it is 0."""

    waiting: int
    delayed: int
    active: int
    completed: int
    failed: int
    prioritized: int = 0
    waiting_children: int = 0
    paused: int = 0
    waiting_signal: int | UnsetType = UNSET


class JobCountsReply(Reply, kw_only=True):
    counts: Counts


class ProgressReply(Reply, kw_only=True):
    progress: float
    message: ContentText | None


@http("GET /jobs/{id}", Tag.JOBS)
@command(Route.ID, Verb.SEE | Verb.READ)
class GetJob(OfJob[JobReply], tag="GetJob"):
    """Get a job, with ``state``, ``returnvalue`` and ``failedReason``.

    Data and a result of more than ``dataLimit`` bytes are left out, as in GetJobs.
    """

    data_limit: DataLimit | None = None


@http("GET /custom-ids/{customId}", Tag.JOBS)
@command(Route.ID, Verb.SEE | Verb.READ)
class GetJobByCustomId(Command[JobReply], tag="GetJobByCustomId"):
    """Get the unfinished job with a client-chosen id."""

    custom_id: JobId


@http("GET /jobs/{id}/state", Tag.JOBS)
@command(Route.ID, Verb.SEE)
class GetState(OfJob[StateReply], tag="GetState"):
    """Get the state of a job; it is ``unknown`` for an unknown id."""


@http("GET /jobs/{id}/result", Tag.JOBS)
@command(Route.ID, Verb.READ)
class GetResult(OfJob[ResultReply], tag="GetResult"):
    """Get the result of a completed job."""


@http("GET /queues/{queue}/jobs/list", Tag.JOBS_OF_A_QUEUE)
@command(Route.QUEUE, Verb.SEE | Verb.READ, heavy=True)
class GetJobs(OfQueue[JobsReply], tag="GetJobs"):
    """List a page of a queue's jobs in order of creation, in one state, several, or all.

    Data and results of more than ``dataLimit`` bytes are left out; the job then has ``dataBytes`` and
    ``returnvalueBytes`` instead.  A page ends earlier if its jobs are large.  With a ``cursor`` the page
    begins after the last job of another page, even if that job is gone by now; "" begins with the first page.
    The reply then has the next cursor, unless this is the last page.  The reply of a page that ended earlier
    always has a cursor.
    """

    state: StateNames | None = None
    limit: PageSize = 100
    offset: Offset = 0
    asc: bool = True
    data_limit: DataLimit | None = None
    cursor: JobCursor | None = None


@http("GET /queues/{queue}/counts", Tag.QUEUES)
@command(Route.QUEUE, Verb.SEE)
class GetJobCounts(OfQueue[JobCountsReply], tag="GetJobCounts"):
    """Count the jobs of a queue in each state."""


@http("GET /queues/{queue}/count", Tag.QUEUES)
@command(Route.QUEUE, Verb.SEE)
class Count(OfQueue[CountReply], tag="Count"):
    """Count the jobs of a queue: those in all states (version 2, or with ``everything``), or the queued ones
    (version 3).
    """

    everything: bool = False


@http("PUT /jobs/{id}/progress", Tag.JOBS)
@command(Route.ID, Verb.RUN, writes=True, repeatable=True)
class Progress(OfJob[Ok], tag="Progress"):
    """Set the progress of an active job, clamped to 0..100; without ``message``, the last message stays."""

    progress: float
    message: Message | None = None


@http("GET /jobs/{id}/progress", Tag.JOBS)
@command(Route.ID, Verb.SEE)
class GetProgress(OfJob[ProgressReply], tag="GetProgress"):
    """Get the progress of an active job."""
