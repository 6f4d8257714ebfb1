"""Flows of named jobs, turned into the nodes of a command. Nothing here talks to a server."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from bunqueue.client.connection.options import refused, shown
from bunqueue.client.flow_plan import FlowJob, checked, own_fields
from bunqueue.client.options.types import POLICIES
from bunqueue.errors import OptionError
from bunqueue.protocol.commands.flows import MAX_NODES, FlowNode

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,200}")


def new_id() -> str:
    """The id of a flow that was given none."""
    return f"flow-{secrets.token_hex(8)}"


def checked_name(what: str, name: object, field: str) -> str:
    """Return `name`. Raises OptionError if it is not a valid flow id or job name."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        text = f"{what}: {shown(name)} is not allowed; give 1 to 200 characters of [a-zA-Z0-9_.-]"
        raise OptionError(text, field=field, value=name)
    return name


def id_of(flow_id: str, name: str) -> str:
    """The id of a job, from its flow and its name."""
    return f"{flow_id}:{name}"


def name_of(key: str) -> str:
    """The name of a job, from its id or "queue:id"; for a job without a name, its id."""
    return key.rpartition(":")[2]


def nodes(jobs: Mapping[str, FlowJob[Any]], defaults: Mapping[str, Any]) -> list[FlowNode]:
    """The nodes of a command, in the order of the map. Raises OptionError or PayloadError."""
    if not isinstance(jobs, Mapping) or not jobs:
        raise refused("flow", jobs, "is not allowed; give a map of names and jobs")
    if len(jobs) > MAX_NODES:
        raise OptionError(
            f"a flow takes at most {MAX_NODES} jobs at a time; add the others after these",
            field="jobs",
            value=len(jobs),
            bound=MAX_NODES,
        )
    names = {
        id(checked(job)): checked_name("the name of a flow job", name, "jobs") for name, job in jobs.items()
    }
    if len(names) < len(jobs):
        raise OptionError("one job stands under two names; make two of it")
    return [_node(name, job, names, defaults) for name, job in jobs.items()]


def callbacks(
    on_complete: FlowJob[Any] | None, on_success: FlowJob[Any] | None, defaults: Mapping[str, Any]
) -> tuple[dict[str, FlowJob[Any]], list[FlowNode]]:
    """The jobs that run at the end of a batch, by name, and their nodes. Raises OptionError."""
    given = {"complete": on_complete, "success": on_success}
    jobs = {f"on-{kind}": checked(job) for kind, job in given.items() if job is not None}
    if not jobs:
        raise OptionError(
            "a batch needs on_complete, on_success or both; without them it is a flow", field="on_complete"
        )
    made = nodes(jobs, defaults)
    for node in made:
        if node.after:
            raise OptionError(f"{node.name}: it waits for all jobs of the batch, and for nothing else")
        node.gathers = "complete" if node.name == "on-complete" else "success"
    return jobs, made


def numbered(jobs: Iterable[FlowJob[Any]]) -> dict[str, FlowJob[Any]]:
    """Name jobs uniquely."""
    chance = secrets.token_hex(6)
    return {f"job-{chance}-{number}": job for number, job in enumerate(jobs)}


def _node(name: str, job: FlowJob[Any], names: Mapping[int, str], defaults: Mapping[str, Any]) -> FlowNode:
    after = [checked_name(f"what {name!r} waits for", other, f"{name}.after") for other in job.named]
    for child in job.children:
        if id(child) not in names:
            raise OptionError(
                f"{name!r} waits for {child!r}, which has no name; give it one in the map", field=name
            )
        after.append(names[id(child)])
    fields = own_fields(job, defaults)
    if fields.job_id is not None:
        raise OptionError(
            f"flow job {name!r}: job_id: not possible under a name, which makes its id",
            field=f"{name}.job_id",
        )
    if policy := POLICIES[job.on_failure]:
        setattr(fields, policy, True)
    return FlowNode(name=name, queue=job.queue, after=list(dict.fromkeys(after)), input=fields)
