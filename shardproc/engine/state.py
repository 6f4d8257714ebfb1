"""The state of a shard: its queues, its live jobs and their holders, and pending deadlines.

Plain data without rules; the modules beside it change it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from msgspec import Raw, Struct, UnsetType

from bunqueue.model.bounds import Bounds
from bunqueue.model.dead_letters import DlqConfig
from bunqueue.model.ids import IdFactory, slot_of_queue
from bunqueue.model.job import Job, JobOptions, SharedOptions
from bunqueue.model.retention import Retention
from bunqueue.model.rights import NAMELESS
from bunqueue.model.scope import Scope
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import Command, CommandError, Reply, Spec
from bunqueue.protocol.job_view import DEFAULT_OPTIONS, MAX_SHARED, plain_options, share_options
from shardproc.engine.ready.ready_queue import ReadyQueue

from .memory.clock_uncertainty import ClockUncertainty
from .memory.dropped_letters import DroppedLetters
from .memory.error_groups import Errors
from .memory.functions import Functions
from .memory.job_figures import AllFigures, JobFigures
from .memory.lazy_heap import LazyHeap
from .memory.open_runs import Children, OpenRun
from .memory.parked_trials import Trials
from .memory.push_memory import PushMemory
from .memory.recovery import Recovery
from .memory.tenants import Tenant, Tenants
from .memory.timetable import Timetable
from .memory.totals import Rates, Totals
from .memory.vitals import Vitals
from .memory.worker_presence import Reachability
from .outbox import Archive, Outbox, QueueRow
from .ready import deadlines, space

if TYPE_CHECKING:
    from bunqueue.protocol.commands.core import GroupRule
    from bunqueue.protocol.commands.dlq import Dropped
    from bunqueue.protocol.commands.events import Ended
    from bunqueue.server.links.peers import Failed, Message, Outcome

    from .memory.child_results import ChildResult
    from .memory.history import History
    from .memory.webhooks import Webhook
    from .peer_calls import Asked
    from .ready.groups import Groups
    from .ready.queue_limits import QueueLimits

BUDGET = 3_000  # jobs that background work may handle per tick, about 3 µs each
RELAYED = 0xC000_0000  # the first connection number for clients of other shards


class LongWork(Struct, eq=False):
    """A command that is carried out slice by slice; see slices.py."""

    client: Client
    command: Command | None  # None: it answers another shard
    steps: Generator[None, None, Any]
    writes: bool  # it runs to the end, even if nobody waits for the reply


class Client:
    """A connection, as seen by the shard."""

    __slots__ = (
        "aliases",
        "by",
        "closed",
        "conn",
        "held",
        "listens_to",
        "options",
        "own_timeouts",
        "polls",
        "scope",
        "sent_scope",
        "signals",
        "slow",
        "turn",
        "version",
        "waiters",
        "waits",
    )

    def __init__(self, conn: int, version: int, turn: int = 0) -> None:
        self.conn = conn
        self.version = version  # of the protocol: decides the form of its replies
        self.turn = turn or conn  # whose turn its commands use; of a ticket: the connection that asks
        self.held: set[Job] = set()  # active jobs that it pulled
        self.waiters = 0  # parked pulls and WaitJobs
        self.polls: set[Waiter] | None = None  # the parked pulls among them
        self.waits: set[JobWait] | None = None  # the parked WaitJobs
        self.listens_to: str | None = None  # the queue whose events it gets
        self.signals = False  # it wants a notice when one of its jobs should stop
        self.own_timeouts = False  # it enforces the timeouts of its jobs itself
        self.slow = 0  # answered commands that may be answered late, for the router's count
        self.closed = False
        self.scope: Scope | None = None  # to which queues it is limited, and what it may not read
        self.sent_scope: Scope | None = None  # the same, also of an identity that is not limited
        self.by: str | None = None  # its identity, with which its jobs are shown
        self.options = DEFAULT_OPTIONS  # of its jobs without others
        self.aliases: dict[str, str] = {}  # see `scoped.py`

    def act_for(self, scope: Scope | None) -> None:
        """The next commands come from this identity."""
        self.sent_scope = scope
        self.scope = scope if scope is not None and scope.limits else None
        self.by = None if scope is None or scope.identity.name in NAMELESS else scope.identity.name
        self.options = plain_options(self.by)


class Waiter(Struct, gc=False, eq=False):
    """A parked pull."""

    client: Client
    queue: str
    req_id: Raw | UnsetType
    count: int | None  # None: PULL, else PULLB
    owner: str
    lock_ttl: int
    deadline: int
    detach: bool = False
    group: GroupRule | None = None
    done: bool = False


class JobWait(Struct, eq=False):
    """A parked WaitJob or WaitJobs."""

    client: Client
    job_ids: tuple[str, ...]
    req_id: Raw | UnsetType
    many: bool = False
    done: bool = False


class Gone(NamedTuple):
    """How a removed job ended."""

    queue: str
    end: Ended


class Awaited:
    """A job that others wait for."""

    __slots__ = ("done", "is_watched", "jobs", "parents", "shard", "shards", "users")

    def __init__(self) -> None:
        self.jobs: dict[Job, None] = {}  # blocked jobs of this shard
        self.parents: dict[str, None] = {}  # workflows of this shard that started it
        self.shards: set[int] = set()  # other shards that need its outcome
        self.users = 0  # tasks that have asked for its outcome
        self.shard = -1  # its shard, as far as known
        self.is_watched = False  # that shard will send its outcome
        self.done = False  # it has completed since it was looked up


class ChildEnd(Struct, eq=False):
    """The outcome of a child, for the workflows that started it."""

    outcome: Outcome
    parents: list[str]


class QueueState:
    """One queue."""

    __slots__ = (
        "active",
        "blocked",
        "completed",
        "delayed",
        "dropped",
        "ended_keys",
        "failed",
        "functions",
        "history",
        "id",
        "is_bounded",
        "jobs",
        "kept",
        "late",
        "limits",
        "listeners",
        "name",
        "names",
        "paused",
        "ready",
        "slot",
        "space",
        "suspended",
        "tenant",
        "total_completed",
        "total_failed",
        "unique",
        "waiters",
        "waiting",
        "waiting_signal",
    )

    def __init__(self, queue_id: int, name: str) -> None:
        self.id = queue_id
        self.name = name
        self.slot = slot_of_queue(name)
        self.ready: ReadyQueue | Groups = ReadyQueue()
        self.jobs: dict[int, Job] = {}  # live jobs by seq, in order of arrival
        self.late: dict[int, Job] = {}  # live jobs revived from the dead letters
        self.active: dict[int, Job] = {}  # active jobs of both
        self.delayed: dict[int, Job] = {}  # delayed jobs of both
        self.blocked: dict[int, Job] = {}  # jobs of both that depend on others
        self.suspended: dict[int, Job] = {}  # workflows of both that wait for signals or children
        self.waiting_signal = 0  # the number of these that wait for a signal
        self.unique: dict[str, str] = {}  # unique key -> id of the live holder
        self.ended_keys = NO_KEYS  # unique key -> ended job that still holds it
        self.waiters: deque[Waiter] = deque()
        self.listeners: Collection[int] = ()  # connections subscribed to its events
        self.waiting = self.completed = self.failed = 0
        self.kept = -1  # number of the last completed job that retention found young enough
        self.dropped: Dropped | None = None  # counts of dropped dead letters, if any
        self.paused = False
        self.limits: QueueLimits | None = None  # other reasons to hold its jobs back
        self.space: space.Space | None = None  # its bounds, if its waiting jobs are bounded
        self.tenant: Tenant | None = None  # the namespace that it is in
        self.is_bounded = False  # there may be no room for more jobs: it has a space or a tenant
        self.functions: Functions | None = None  # what apps have declared for it
        self.total_completed = self.total_failed = 0  # since the shard started
        self.history: History | None = None  # of these two
        self.names: dict[str, JobFigures] = {}  # what its jobs have done, by their names


def _check_lock() -> None:
    """There is no file to check."""


def _accept(spec: Spec) -> CommandError | None:
    """Accept every command."""
    return None


def _end(work: object, error: Exception) -> NoReturn:
    raise error


def _is_set(alarm: tuple[int, int, QueueState]) -> bool:
    """Whether an entry of ``State.alarms`` is the current alarm of its limits."""
    at, _, queue = alarm
    return queue.limits is not None and queue.limits.alarm == at


class EndedKey(Struct, omit_defaults=True):
    """The unique key of an ended job, not free for another job yet; times in epoch ms."""

    id: str
    until: int | None = None  # None: as long as the job is kept
    since: int = 0  # when that was set


class EndedKeys:
    """The keys of ended jobs in all queues: their number, their ends, and those that are kept with their
    job."""

    __slots__ = ("count", "ends", "kept", "size")

    def __init__(self) -> None:
        self.count = self.size = 0  # size in bytes, approximately
        self.ends: LazyHeap[int, tuple[str, str]] = LazyHeap(lambda entry: True, reported=True)
        self.kept: dict[int | str, list[tuple[str, str]]] = {}  # number or id of the job -> queue, key


NO_KEYS: dict[str, EndedKey] = {}  # of nearly all queues; never changed


class Maintenance:
    """The state of retention and automatic retries of finished jobs: see background/retention.py."""

    __slots__ = (
        "dead_letters",
        "dlq_at",
        "next_at",
        "pieces",
        "pressed",
        "retention",
        "uncertainty",
        "unused",
    )

    def __init__(self) -> None:
        self.retention, self.uncertainty = Retention(), ClockUncertainty()  # replaced by the process
        self.dead_letters = DlqConfig()  # replaced by the process; for queues without settings of their own
        self.pressed = False  # the disk is full: each queue keeps only its last completed job
        self.pieces: Iterator[int] | None = None  # of the current round
        self.next_at = self.dlq_at = 0  # when the next piece, and the next check of dead letters, are due
        # How long queues have been unused, and how many of their jobs had ended: see unused_queues.py.
        self.unused: dict[QueueState, tuple[int, int]] = {}


class State:
    """The complete state; `now` is the time of the current batch."""

    __slots__ = (
        "_shared",
        "alarms",
        "answering",
        "archive",
        "arrived",
        "arriving",
        "asked",
        "asked_size",
        "awaited",
        "away_until",
        "background_work",
        "budget",
        "called",
        "calls",
        "cancels",
        "chance",
        "check_lock",
        "child_results",
        "children",
        "clients",
        "configs",
        "decided",
        "decisions",
        "delays",
        "died",
        "directory",
        "dropped",
        "due",
        "early_pulls",
        "ended",
        "ended_keys",
        "errors",
        "figures",
        "freed_ids",
        "functions",
        "given_away",
        "gone",
        "granted",
        "ids",
        "incarnations",
        "jobs",
        "kept",
        "leaving",
        "listeners",
        "long_works",
        "maintenance",
        "minute",
        "moved",
        "moving",
        "next_queue_id",
        "next_seq",
        "next_sweep",
        "now",
        "on_command_error",
        "on_question_error",
        "orphans",
        "out",
        "parts",
        "poll_ends",
        "prepared",
        "pushed",
        "questions",
        "queue_names",
        "queues",
        "queues_with_workers",
        "rates",
        "reachability",
        "recovery",
        "refusal",
        "relays",
        "remaining",
        "run_ends",
        "runs",
        "serial",
        "shard",
        "shards",
        "started_at",
        "tenants",
        "timeouts",
        "timetable",
        "tombstones",
        "totals",
        "trials",
        "unblocked",
        "undecided",
        "unfinished",
        "vitals",
        "wait_ends",
        "waits",
        "webhooks",
        "webhooks_anywhere",
        "woken",
    )

    def __init__(
        self,
        archive: Archive,
        ids: IdFactory,
        chance: Callable[[], float],
        shard: int = 0,
        shards: int = 1,
    ) -> None:
        self.archive = archive
        self.shard, self.shards = shard, shards  # the number of this shard, and the number of shards
        self.ids, self.chance = ids, chance  # ``chance`` returns a random number in [0, 1)
        self.now = self.started_at = 0
        self.out = Outbox()
        self.kept = self.out.kept
        self.queues: dict[str, QueueState] = {}
        self.tenants = Tenants()
        self.early_pulls: dict[str, deque[Waiter]] = {}  # pulls parked at queues that do not exist yet
        self.next_queue_id = self.next_seq = 1
        self.jobs: dict[str, Job] = {}  # live jobs by id
        self.clients: dict[int, Client] = {}
        self.configs: dict[tuple[type[Struct], str], Struct] = {}  # see memory/queue_configs.py
        self.functions: dict[str, Functions] = {}  # of the queues for which apps have declared some
        self.orphans: set[Job] = set()  # active jobs without a connection
        self.delays = deadlines.delays()
        self.timeouts = deadlines.timeouts(self.jobs)
        self.poll_ends: deadlines.Deadlines[Waiter] = deadlines.parked()
        self.alarms: LazyHeap[int, QueueState] = LazyHeap(_is_set)  # when limits may open
        self.waits: dict[str, list[JobWait]] = {}  # parked WaitJobs by the id of the job
        self.wait_ends: deadlines.Deadlines[JobWait] = deadlines.parked()
        self.serial = 0  # number of the last forwarded command
        self.woken: dict[QueueState, None] = {}  # queues with waiters that got a job, in that order
        self._init_others()
        self._init_listeners()
        self._init_workflows()
        self.long_works: dict[int, deque[LongWork]] = {}  # by `Client.turn`; the current turn comes first
        self.background_work: dict[object, Iterator[None]] = {}  # oldest first
        self.budget = BUDGET  # what is left of this tick's budget for work that no command asked for
        self.next_sweep = 0
        self.timetable = Timetable()
        # queue -> routers that know a worker for it -> names of the jobs that these workers run; None:
        # unknown
        self.queues_with_workers: dict[str, dict[int, frozenset[str] | None]] = {}
        self.away_until = 0  # until then the whole server was down: anything due before was missed
        self.maintenance, self.pushed = Maintenance(), PushMemory()
        self.recovery, self.reachability = Recovery(), Reachability()
        self.ended_keys, self.dropped, self.errors = EndedKeys(), DroppedLetters(), Errors()
        self.totals, self.rates, self.figures = Totals(), Rates(), AllFigures()
        self.minute = 0  # the minute up to which the counts per minute are recorded
        self._init_process()
        self.unfinished = 0  # changes in progress for other shards; one that failed remains counted
        # All heaps whose first key is the time of what is due next.
        self.due: tuple[LazyHeap[int, Any], ...] = (
            self.delays,
            self.poll_ends,
            self.wait_ends,
            self.trials.ends,
            self.alarms,
        )
        self._shared: dict[JobOptions, SharedOptions] = {}

    def _init_process(self) -> None:
        """Set defaults that the process replaces by its own functions."""
        self.vitals: Callable[[], Vitals] = Vitals
        self.on_command_error: Callable[[Command, Exception], Reply] = _end
        self.on_question_error: Callable[[Message, Exception], Failed] = _end
        self.check_lock: Callable[[], None] = _check_lock  # called before a change: see `Store.check_lock`
        self.refusal: Callable[[Spec], CommandError | None] = _accept  # set while disk or memory is short

    def _init_listeners(self) -> None:
        """Subscribers of events, and webhooks."""
        self.listeners: dict[str, set[int]] = {}  # queue -> connections that get its events
        self.queue_names: dict[
            int, str
        ] = {}  # by id, also of queues that are gone; see handlers/views/event_log.py
        self.webhooks: dict[str, Webhook] = {}
        self.trials = Trials()
        self.webhooks_anywhere = False  # they may target the server's own network

    def _init_others(self) -> None:
        """Set up the data on other shards, and on dependencies between jobs."""
        self.directory: dict[str, int] = {}  # ids that point here, of jobs elsewhere -> their shard
        self.granted: Counter[str] = Counter()  # ids claimed for jobs that do not exist yet
        self.given_away: list[set[str]] = []  # per waiting claim: ids that others have got since
        self.prepared: dict[str, str] = {}  # ids of jobs in undecided flows -> the flow
        self.parts: dict[str, Any] = {}  # flow -> flows.Part, its prepared jobs
        self.undecided: dict[str, list[Callable[[Any], None]]] = {}  # flow -> callbacks for its decision
        self.decisions: dict[str, Any] = {}  # flow -> flows.Decision; other shards may not know it yet
        self.leaving: dict[str, Any] = {}  # moves in progress at the start; see peers/moves.py
        self.moving: dict[str, list[Callable[[Any], None]]] = {}  # moving jobs -> those who wait
        self.moved: dict[str, int] = {}  # jobs that have left -> their new shard; the latest ones
        self.arrived: dict[str, Any] = {}  # moves whose jobs arrived here -> moves.Arrived
        self.arriving: set[str] = set()  # their jobs
        self.awaited: dict[str, Awaited] = {}
        self.decided: list[Job] = []  # awaited jobs that have ended; not yet handled
        self.freed_ids: list[str] = []  # chosen ids of removed jobs; not yet sent to other shards
        self.died: list[Job] = []  # jobs that failed for good and cause a new one; not yet handled
        self.calls: dict[int, dict[str, None]] = {}  # shard -> keys of jobs that it should add for dead ones
        self.called: dict[str, tuple[str, str]] = {}  # keys of jobs added for dead ones elsewhere; stored
        self.unblocked: list[Job] = []  # removed jobs that waited for others, which are not notified yet
        self.ended: dict[str, Gone] = {}  # outcomes of removed jobs; see lifecycle/job_waiters.py
        self.gone: dict[str, Outcome] = {}  # outcomes of removed jobs; the latest ones
        self.tombstones: dict[str, Outcome] = {}  # removed jobs that other shards may ask about; stored
        self.child_results: dict[str, ChildResult] = {}  # results of removed children; stored
        self.incarnations: Counter[int] = Counter()  # shard -> number of its starts
        self.questions = self.ids.incarnation()  # number of the last question; never one of an earlier life
        self.asked: dict[int, Asked] = {}  # questions to other shards
        self.asked_size = 0  # their approximate size in bytes
        self.answering: set[tuple[int, int]] = set()  # questions from other shards: shard and number
        self.relays: dict[int, Callable[[Any], None]] = {}  # connection -> callback for a forwarded reply

    def _init_workflows(self) -> None:
        """Set up the data on jobs with steps."""
        self.runs: dict[str, OpenRun] = {}  # active jobs whose steps are in memory, by id
        self.remaining: dict[str, list[int]] = {}  # suspended jobs -> open steps of each group, once counted
        self.children: dict[str, Children] = {}  # by the id of the workflow
        self.cancels: dict[str, Any] = {}  # ids of children to cancel -> children.Order; stored
        # Not yet handled: workflows that have ended, and children whose end concerns workflows.
        self.run_ends: list[Job | ChildEnd] = []

    def client(self, conn: int, version: int) -> Client:
        """The client of a connection, created on first use."""
        client = self.clients.get(conn)
        if client is None:
            client = self.clients[conn] = Client(conn, version)
        elif client.version != version:
            client.version = version
        return client

    def queue(self, name: str) -> QueueState:
        """The queue of that name, created by its first push; the name has been checked."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.enter(QueueState(self.next_queue_id, name))
            self.next_queue_id += 1
            queue.waiters = self.early_pulls.pop(name, queue.waiters)
            queue.listeners = self.listeners.get(name, ())
            bounds = self.configs.get((Bounds, name))
            if isinstance(bounds, Bounds):
                space.bound(queue, bounds)
            queue.functions = self.functions.get(name)
            self.out.queues.append(QueueRow(queue.id, name, self.now))
        return queue

    def enter(self, queue: QueueState) -> QueueState:
        """Add a queue to those of the shard and of its namespace."""
        self.queues[queue.name] = queue
        queue.tenant = self.tenants.of(queue.name)
        if queue.tenant is not None:
            queue.tenant.queues += 1
            queue.is_bounded = True
        return queue

    def drop(self, queue: QueueState) -> None:
        """Delete an empty queue; pulls parked there continue to wait.  The deletion of its last rows was
        written in an earlier transaction, or because of a read of the archive."""
        del self.queues[queue.name]
        if queue.tenant is not None:
            queue.tenant.queues -= 1
        self.figures.drop(queue.names)
        self.woken.pop(queue, None)
        self.maintenance.unused.pop(queue, None)
        if queue.waiters:
            self.early_pulls[queue.name] = queue.waiters
        self.out.dropped_queues.append(queue.id)

    def waiters(self, name: str) -> deque[Waiter]:
        """The pulls parked at a queue, which need not exist yet: a pull does not create it."""
        queue = self.queues.get(name)
        if queue is not None:
            return queue.waiters
        return self.early_pulls.setdefault(name, deque())

    def parked(self, name: str) -> Iterable[Waiter]:
        """The pulls parked at a queue, read-only."""
        queue = self.queues.get(name)
        return queue.waiters if queue is not None else self.early_pulls.get(name, ())

    def shared(self, options: JobOptions) -> SharedOptions:
        """The shared form of ``options``."""
        found = self._shared.get(options)
        if found is None:
            found = share_options(options)
            if len(self._shared) < MAX_SHARED and not options.tags:
                self._shared[options] = found
        return found

    def is_home(self, queue: str) -> bool:
        """Whether a queue belongs to this shard."""
        return slot_of_queue(queue) & (self.shards - 1) == self.shard

    def live(self, job_id: str) -> Job:
        """A live job, or the error that clients expect."""
        job = self.jobs.get(job_id)
        if job is None:
            raise CommandError("Job not found", Code.JOB_NOT_FOUND, field="id", value=job_id)
        return job
