"""Finding jobs by their properties, in one queue or in all, and changing all jobs that are found."""

from typing import Annotated, Literal, get_args

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from bunqueue.model.job_options import Timeout
from bunqueue.model.marks import JOBS, Mark
from bunqueue.model.rights import Verb
from bunqueue.protocol.commands.base import (
    MAX_SAFE,
    AnsweredBy,
    IdOf,
    Merge,
    Message,
    Priority,
    QueueName,
    Reach,
    Reply,
    RequestId,
    Route,
    Scalar,
    Tag,
    Text,
    command,
    http,
)
from bunqueue.protocol.commands.times import Time

MAX_PAGE = 1000  # jobs in one answer
MAX_CHANGED = 1000  # jobs that one command changes: a few slices, and a few messages to another shard
MAX_SCAN = 10_000_000
SCAN = 200_000  # jobs examined before an answer is sent, about 0.1 s

Words = Text | Annotated[list[Text], Meta(min_length=1, max_length=100)] | None
Cursor = Annotated[str, Meta(min_length=1, max_length=4096)]
Scan = Annotated[int, Meta(ge=1, le=MAX_SCAN)]
DataValue = Annotated[
    Scalar,
    Meta(extra={"called": "single values", "problem": "must be a text, a number, true, false or null"}),
]


class Wanted(Struct, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """Selects the jobs that match every given field.  Unknown fields are refused, because a misspelled one
    would select more jobs than intended.

    A list of states, names or groups matches any of them; a list of tags requires all of them.  ``error`` is
    a part of the last error, in upper or lower case; ``errorType`` is the class of the last error, with or
    without its module.  ``createdAfter`` and ``finishedAfter`` include the
    given moment, ``createdBefore`` and ``finishedBefore`` do not.  ``data`` has required values of the job's
    data by path, as in ``{"order.id": 7}``.  ``where`` has further conditions: see "Conditions as text".
    """

    queue: QueueName | None = None  # absent: all queues
    state: Words = None
    name: Words = None
    tag: Words = None
    group: Words = None
    worker: Text | None = None  # as its client knows it, like the names in ``where``
    error: Annotated[Text, Mark.CONTENT] | None = None
    error_type: Text | None = None
    created_after: Time | None = None
    created_before: Time | None = None
    finished_after: Time | None = None
    finished_before: Time | None = None
    data: Annotated[dict[str, DataValue], Meta(max_length=32), Mark.CONTENT] | None = None
    where: Message | None = None
    req_id: RequestId = UNSET  # a struct has only one base, so Command's field is repeated here


class Plan(Struct, gc=False):
    """How a search finds its jobs.

    ``by`` lists the fields that locate the jobs: name, tag, group, created, finished, queue or state; it is
    empty if every job is examined.  ``jobs`` is the largest number of jobs that remain to be examined,
    counted from the beginning of this page.
    """

    by: list[str]
    jobs: int


class Progress(Struct, gc=False):
    """``scanned``: approximately how many jobs this command has examined.  ``found``: the number of jobs
    found.

    ``unreadable``: how many are in a damaged part of the file, so that nothing is known about them.
    """

    scanned: int
    found: int
    unreadable: int = 0


class Position(Struct, array_like=True, gc=False):
    """Only for merging the answers of several shards.

    ``start``: where the page begins, as in a cursor.  ``created``: creation time of the last job examined.
    ``seqs`` and ``times``: number and creation time of each job in the answer.
    """

    shard: int
    limit: int
    asc: bool
    start: int
    created: float
    seqs: list[int]
    times: list[float]


class FindReply(Reply, kw_only=True):
    """The jobs, newest first unless ``asc``.  With a ``cursor`` there may be more: the same command with that
    cursor finds them, even if this answer has no job at all.
    """

    jobs: Annotated[Raw, JOBS]  # encoded by protocol.job_view
    cursor: str | None
    plan: Plan
    progress: Progress
    position: Position | UnsetType = UNSET  # from one shard of several; not sent to clients


@http("GET /queues/{queue}/jobs/find", Tag.JOBS_OF_A_QUEUE)
@http("GET /jobs", Tag.JOBS)
@command(Route.QUEUE_OR_ALL, Verb.SEE | Verb.READ, merge=Merge.PAGE, heavy=True, since=3, reach=Reach.ALLOWED)
class FindJobs(Wanted, AnsweredBy[FindReply], kw_only=True, tag_field="cmd", tag="FindJobs", gc=False):
    """Find jobs in any state, in one queue or in all, page by page.

    Jobs come in the order of arrival, or with several shards in the order of creation.  A job that exists
    during the whole search is found exactly once.  ``limit`` 0 only counts.  The command answers as soon as
    it has examined ``scan`` jobs; with ``explain`` it examines none, and says how many it would examine.
    Data and results of more than ``dataLimit`` bytes are left out; the job then has ``dataBytes`` instead.
    """

    limit: Annotated[int, Meta(ge=0, le=MAX_PAGE)] = 100
    cursor: Cursor | None = None
    asc: bool = False
    scan: Scan = SCAN
    explain: bool = False
    data_limit: Annotated[int, Meta(ge=0, le=MAX_SAFE)] | None = None


Action = Literal["cancel", "retry", "remove", "priority", "move"]
VERBS = {action: Verb.DESTROY if action == "remove" else Verb.OPERATE for action in get_args(Action)}


class Changed(Struct, gc=False):
    """``changed``: how many jobs were changed; with ``dryRun``, at most how many would be.  ``skipped``: how
    many were found but left unchanged, by reason.  ``examples``: the ids of the first jobs that were changed.
    """

    changed: int
    skipped: dict[str, int]
    examples: list[IdOf]


class ChangeReply(Reply, kw_only=True):
    """With a ``cursor`` there may be more: the same command with that cursor continues."""

    data: Changed
    cursor: str | None
    plan: Plan
    progress: Progress


@http("POST /queues/{queue}/jobs/change", Tag.JOBS_OF_A_QUEUE)
@http("POST /jobs/change", Tag.JOBS)
@command(
    Route.QUEUE_OR_EACH,
    Verb.OPERATE | Verb.DESTROY,
    by_action=VERBS,
    merge=Merge.PAGE,
    writes=True,
    heavy=True,
    since=3,
    reach=Reach.ALLOWED,
)
class ChangeJobs(Wanted, AnsweredBy[ChangeReply], kw_only=True, tag_field="cmd", tag="ChangeJobs", gc=False):
    """Change all jobs that are found, oldest first, in batches.

    - ``cancel``: like Cancel with ``running``, with ``reason`` and ``grace``
    - ``retry``: dead letters run again with all their attempts.  Cancelled and completed ones are skipped
      unless ``state`` names them
    - ``remove``: like RemoveJob; active jobs are skipped
    - ``priority``: waiting and delayed jobs get this ``priority``
    - ``move``: waiting and delayed jobs, and dead letters, go to the queue ``to``, which may be new.  They
      keep their ids, data, options, logs and attempts; dead letters become waiting jobs there, with all their
      attempts.  Jobs of flows, and workflows, are skipped

    The command changes at most ``limit`` jobs and examines at most ``scan``.  It does not change jobs that
    arrived after the first command.  With ``dryRun`` it changes none and counts all.  It is refused if it has
    neither a queue nor a condition.
    """

    action: Action
    priority: Priority | None = None
    to: QueueName | None = None
    reason: Message | None = None
    grace: Timeout | None = None  # 10 s
    dry_run: bool = False
    limit: Annotated[int, Meta(ge=1, le=MAX_CHANGED)] = MAX_CHANGED
    cursor: Cursor | None = None
    scan: Scan = SCAN
