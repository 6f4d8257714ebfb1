"""The parts of a flow, and their conversion to one command. Nothing here talks to a server."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, Unpack, cast

from msgspec import Raw

from bunqueue.client.connection.options import refused, unfit
from bunqueue.client.models.jobs import Job
from bunqueue.client.options import checks
from bunqueue.client.options.job import JobOptions, NewJob, check_size, job_data, wire_fields
from bunqueue.client.options.types import POLICIES, OnFailure
from bunqueue.errors import OptionError
from bunqueue.model.ids import slot_of_queue
from bunqueue.protocol.commands import flows
from bunqueue.protocol.commands.core import JobFields

R = TypeVar("R", covariant=True)
J = TypeVar("J", covariant=True)

MAX_JOBS = 10_000  # in one flow; the protocol's limit
_FORBIDDEN = {
    "unique": "unique",
    "unique_key": "unique_key",  # a flow with a taken key would lack this job
    "depends_on": "depends_on",
    "parent_id": "parent",
    **{field: "failure_policy" for field in POLICIES.values()},
}
"""Fields that a flow sets in its own way or cannot have, and the options that they come from."""


class FlowJob(NewJob, Generic[R]):
    """A job of a flow, and the jobs that it waits for: its children.

        FlowJob("report", {"month": "May"}, queue="reports").after(
            FlowJob("fetch", {"source": "a"}, queue="fetches", max_attempts=5),
            FlowJob("fetch", {"source": "b"}, queue="fetches", on_failure="ignore"),
        )

    `data` must be a map, because flows require it: a dict, a dataclass, a model. With a `result_type` the
    job's handle converts its result to that type. `on_failure` says what the job's failure means for its
    parent; see `OnFailure`. The options are those of any job, except `unique_key`. A job may be a child of
    several others: it is added once, and all of them wait for it.
    """

    __slots__ = ("children", "named", "on_failure", "result_type")

    queue: str

    def __init__(
        self,
        name: str,
        data: object = None,
        *,
        queue: str,
        children: Iterable[FlowJob[Any]] = (),
        on_failure: OnFailure = "fail",
        result_type: type[R] | None = None,
        **options: Unpack[JobOptions],
    ) -> None:
        super().__init__(checks.job_name(name), {} if data is None else data, **options)
        self.queue = checks.queue_name(queue)
        self.children: list[FlowJob[Any]] = [checked(child) for child in children]
        self.named: list[str] = []
        """Names of other jobs of the same flow that it waits for; see `FlowProducer.add_graph`."""
        self.on_failure = _policy(on_failure)
        self.result_type: Any = Any if result_type is None else result_type
        """The type to which a handle converts the job's result."""

    def __repr__(self) -> str:
        return f"FlowJob({self.name!r}, queue={self.queue!r}, {len(self.children)} children)"

    def after(self, *children: FlowJob[Any] | str) -> Self:
        """Also wait for these jobs; in a flow with names, names are enough. Returns self."""
        for child in children:
            if isinstance(child, str):
                self.named.append(child)
            else:
                self.children.append(checked(child))
        return self

    def if_it_fails(self, policy: OnFailure) -> Self:
        """Set what its failure means for its parent: `fetch.job("a").if_it_fails("ignore")`. Returns self."""
        self.on_failure = _policy(policy)
        return self


def checked(job: FlowJob[J]) -> FlowJob[J]:
    """Return `job`. Raises OptionError if it is not a FlowJob."""
    if not isinstance(job, FlowJob):
        raise refused(
            "flow", job, "is not allowed; give a bunqueue.FlowJob, or what a typed job's job() gives"
        )
    return job


def _policy(policy: OnFailure) -> OnFailure:
    if policy not in POLICIES:
        raise refused("on_failure", policy, f"is not allowed; give one of {', '.join(POLICIES)}")
    return policy


class FlowNode(Generic[J]):
    """A job of a flow that was added: its handle, and the nodes of its children, in order."""

    __slots__ = ("children", "job")

    def __init__(self, job: J, children: Sequence[FlowNode[Any]] = ()) -> None:
        self.job: J = job
        self.children = children

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.job!r}, {len(self.children)} children)"

    def walk(self) -> Iterator[FlowNode[Any]]:
        """This node and all below it, each once and before its children."""
        waiting: list[FlowNode[Any]] = [self]
        met: set[int] = set()
        while waiting:
            node = waiting.pop()
            if id(node) in met:
                continue
            met.add(id(node))
            yield node
            waiting += reversed(node.children)


class FlowTree(FlowNode[Job]):
    """A job of a flow as read from the server, with all below it."""

    __slots__ = ()

    children: Sequence[FlowTree]

    def walk(self) -> Iterator[FlowTree]:
        """This job and all below it, a parent before its children."""
        return cast(Iterator[FlowTree], super().walk())


class Planned:
    """A job with its id. `parent` is the first job that waits for it."""

    __slots__ = ("children", "id", "job", "parent")

    def __init__(self, job: FlowJob[Any], parent: Planned | None) -> None:
        self.job = job
        self.id = job.options.get("job_id") or new_id(job.queue)
        self.parent = parent
        self.children: list[Planned] = []


def new_id(queue: str) -> str:
    """An id that routes to the shard of its queue, and looks like a UUID. It never equals one that a server
    generates: those have another digit at the 20th place.
    """
    stamp, chance = f"{time.time_ns() // 1_000_000:012x}", secrets.token_hex(8)
    return f"{stamp[:8]}-{stamp[8:]}-7{slot_of_queue(queue):03x}-f{chance[:3]}-{chance[4:]}"


def plan(roots: Iterable[FlowJob[Any]]) -> list[Planned]:
    """All jobs of some flows, each before its first use as a child. Raises OptionError for names outside a
    graph. The server refuses cycles.
    """
    planned: list[Planned] = []
    seen: dict[int, Planned] = {}
    waiting: list[tuple[FlowJob[Any], Planned | None]] = [(checked(root), None) for root in roots]
    waiting.reverse()
    while waiting:
        job, parent = waiting.pop()
        if id(job) in seen and parent is not None:
            parent.children.append(seen[id(job)])
            continue
        if job.named:
            raise OptionError(f"{job!r} waits for {job.named[0]!r}; names mean something in add_graph only")
        if len(seen) == MAX_JOBS:
            text = f"a flow has at most {MAX_JOBS} jobs; add what does not depend on others apart"
            raise OptionError(text, field="flow", bound=MAX_JOBS)
        seen[id(job)] = mine = Planned(job, parent)
        planned.append(mine)
        if parent is not None:
            parent.children.append(mine)
        waiting += [(child, mine) for child in reversed(job.children)]
    return planned


def push_flow(planned: Sequence[Planned], defaults: Mapping[str, Any]) -> flows.PushFlow:
    """The command that adds them, all or none. Raises OptionError or PayloadError."""
    return flows.PushFlow(
        jobs=[
            flows.FlowJob(id=each.id, queue=each.job.queue, input=_fields(each, defaults)) for each in planned
        ]
    )


def _fields(planned: Planned, defaults: Mapping[str, Any]) -> JobFields:
    fields, children = own_fields(planned.job, defaults), [child.id for child in planned.children]
    fields.job_id = None  # the id is sent next to the fields
    if planned.parent is not None:
        fields.parent_id = planned.parent.id
        if policy := POLICIES[planned.job.on_failure]:
            setattr(fields, policy, True)
    if children:
        fields.children_ids = fields.depends_on = list(dict.fromkeys(children))
    return fields


def own_fields(job: FlowJob[Any], defaults: Mapping[str, Any]) -> JobFields:
    """The fields of a job that do not concern other jobs. Raises OptionError or PayloadError."""
    try:
        fields = wire_fields(job.options, defaults)
        data = _data(job)
        check_size(data, fields, f"the data of flow job {job.name!r}")
        _check(fields)
    except OptionError as error:
        raise error.within(f"flow job {job.name!r} of queue {job.queue!r}", job.name) from None
    return JobFields(name=job.name, data=data, **fields)


def _data(job: FlowJob[Any]) -> Raw:
    data = job_data(job.data, f"the data of flow job {job.name!r}")
    head = bytes(data)[0]
    if not (head & 0xF0 == 0x80 or head in (0xDE, 0xDF)):  # first byte of a MessagePack map
        raise refused("data", job.data, 'is not a map; give one, such as {"value": ...}')
    return data


def _check(fields: Mapping[str, Any]) -> None:
    for field, name in _FORBIDDEN.items():
        if field in fields:
            raise unfit(name, "not possible in a flow; leave it out")


def nodes(planned: Sequence[Planned], handle_of: Callable[[Planned], J]) -> list[FlowNode[J]]:
    """The trees of planned jobs. `handle_of` makes their handles."""
    made = {each.id: FlowNode[J](handle_of(each)) for each in planned}
    for each in planned:
        made[each.id].children = [made[child.id] for child in each.children]
    return [made[each.id] for each in planned if each.parent is None]


def chain(steps: Iterable[FlowJob[Any]]) -> list[FlowJob[Any]]:
    """Each step waits for the one before, in addition to its own children. The given steps stay unchanged."""
    linked: list[FlowJob[Any]] = []
    for step in steps:
        linked.append(_waiting_for(checked(step), linked[-1:]))
    return linked


def merged(parallel: Iterable[FlowJob[Any]], final: FlowJob[R]) -> FlowJob[R]:
    """`final`, waiting for all of `parallel`. The given jobs are not changed."""
    return _waiting_for(final, parallel)


def _waiting_for(job: FlowJob[R], others: Iterable[FlowJob[Any]]) -> FlowJob[R]:
    checked(job)
    linked: FlowJob[R] = FlowJob(job.name, job.data, queue=job.queue, **job.options)
    linked.children = [*job.children, *map(checked, others)]
    linked.named = [*job.named]
    linked.on_failure, linked.result_type = job.on_failure, job.result_type
    return linked
