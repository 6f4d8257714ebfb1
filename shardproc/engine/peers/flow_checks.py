"""Validity of flows: whether the jobs fit together is checked before any shard gets them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from bunqueue.model.names import queue_name_problem
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.flows import FlowJob
from bunqueue.protocol.heads import is_map

from ..handlers.push_checks import check_data, check_fields
from ..lookup import check_own_id

MAX_EDGES = 250_000  # from a job to its dependency; checking them takes 0.2 s, while others wait
POLICIES = (
    "fail_parent_on_failure",
    "remove_dependency_on_failure",
    "continue_parent_on_failure",
    "ignore_dependency_on_failure",
)


def check(jobs: Sequence[FlowJob], version: int, now: int, outside: Container[str] = ()) -> None:
    """CommandError with the reason if a flow is refused.  Its jobs may also wait for those ``outside``."""
    check_edges(len(job.input.depends_on or ()) for job in jobs)
    by_id: dict[str, FlowJob] = {}
    for job in jobs:
        if not job.id:
            raise CommandError("flow job id must be a string", Code.INVALID_FLOW, field="jobs", value="")
        if queue_name_problem(job.queue):
            raise CommandError(
                f"invalid flow queue: {job.queue[:300]}", Code.INVALID_FLOW, field="jobs", value=job.queue
            )
        check_own_id(job.queue, job.id, "jobs")
        if job.id in by_id:
            raise CommandError(
                f"duplicate flow job id: {job.id}", Code.INVALID_FLOW, field="jobs", value=job.id
            )
        by_id[job.id] = job
    for job in jobs:
        check_fields(job.input, version, now, f"flow job {job.id}: ")
        _check_job(job, by_id, outside)
    _check_cycles(jobs)


def check_edges(counts: Iterable[int]) -> None:
    """CommandError if the jobs of a flow have too many dependencies in total."""
    count = sum(counts)
    if count > MAX_EDGES:
        text = f"the jobs of the flow wait for {count} others together, at most {MAX_EDGES} are allowed"
        raise CommandError(text, Code.INVALID_FLOW, field="jobs", value=count, bound=MAX_EDGES)


def _check_job(job: FlowJob, flow: dict[str, FlowJob], outside: Container[str]) -> None:
    fields = job.input
    if not is_map(bytes(fields.data)):
        raise CommandError("flow job data must be an object", Code.INVALID_FLOW, field="jobs", value=job.id)
    check_data(bytes(fields.data), f"flow job {job.id}: ")
    if sum(getattr(fields, policy) for policy in POLICIES) > 1:
        raise CommandError(
            f"flow job {job.id} has more than one policy for its failure, choose one",
            Code.INVALID_FLOW,
            field="jobs",
            value=job.id,
        )
    if fields.unique_key is not None or fields.dedup is not None or fields.debounce_id is not None:
        raise CommandError(
            "deduplication is not supported inside an atomic flow",
            Code.INVALID_FLOW,
            field="jobs",
            value=job.id,
        )
    deps = dict.fromkeys(fields.depends_on or ())
    for dep in deps:
        if dep == job.id:
            raise CommandError(
                f"flow job cannot depend on itself: {dep}", Code.INVALID_FLOW, field="jobs", value=dep
            )
        if dep not in flow and dep not in outside:
            raise CommandError(
                f"flow dependency not found: {dep}", Code.INVALID_FLOW, field="jobs", value=dep
            )
    if fields.parent_id is not None and fields.parent_id not in flow:
        raise CommandError(
            f"flow parent not found: {fields.parent_id}",
            Code.INVALID_FLOW,
            field="jobs",
            value=fields.parent_id,
        )
    for child in fields.children_ids or ():
        if child not in deps:
            raise CommandError(
                f"flow child is missing from dependencies: {child}",
                Code.INVALID_FLOW,
                field="jobs",
                value=child,
            )


def _check_cycles(jobs: Sequence[FlowJob]) -> None:
    """Repeatedly remove jobs without remaining dependencies.  CommandError if some are left over."""
    own = {job.id for job in jobs}
    missing = {job.id: len(own.intersection(job.input.depends_on or ())) for job in jobs}
    dependents: dict[str, list[str]] = {}
    for job in jobs:
        for dep in set(job.input.depends_on or ()):
            dependents.setdefault(dep, []).append(job.id)
    free = [job_id for job_id, count in missing.items() if not count]
    done = 0
    while free:
        done += 1
        for dependent in dependents.get(free.pop(), ()):
            missing[dependent] -= 1
            if not missing[dependent]:
                free.append(dependent)
    if done < len(jobs):
        raise CommandError("flow contains a dependency cycle", Code.INVALID_FLOW, field="jobs")
