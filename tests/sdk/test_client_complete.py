"""Nothing of the protocol is missing from the client, and its twins are twins."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import get_type_hints

import pytest

import bunqueue
from bunqueue import AsyncFlowBatch, AsyncFlowGraph, FlowBatch, FlowGraph
from bunqueue.client import queue
from bunqueue.client.admin import AsyncAdmin
from bunqueue.client.blocking import queue as blocking
from bunqueue.client.blocking.admin import Admin
from bunqueue.client.options import job
from bunqueue.client.options.cron import CronOptions
from bunqueue.client.queue import AsyncQueue
from bunqueue.protocol.commands import COMMANDS
from bunqueue.protocol.commands.core import JobFields, Push
from bunqueue.protocol.commands.cron import CronFields
from bunqueue.worker import active_job

CLIENT = Path(queue.__file__).parent.parent

ELSEWHERE = {
    **dict.fromkeys(["PULLB", "ACKB", "FAILB"], "Worker"),
    **dict.fromkeys(["JobHeartbeatB", "ExtendLock", "ExtendLocks"], "Worker"),
    **dict.fromkeys(["RegisterWorker", "UnregisterWorker", "Heartbeat"], "Worker"),
    **dict.fromkeys(["RecordSteps", "GetSteps", "SuspendJob", "ContinueAsNew"], "Worker"),
    "Auth": "each connection",
    "ActFor": "the HTTP gateway",
    **dict.fromkeys(["PUSHF", "ListFlows"], "FlowProducer"),
    **dict.fromkeys(["AddFlow", "GetFlow", "CancelFlow", "CloseFlow", "RetryFlow"], "FlowGraph"),
    **dict.fromkeys(["SubscribeEvents", "UnsubscribeEvents"], "QueueEvents"),
    **dict.fromkeys(["GetDeliveries", "RecordDelivery", "RecordTrial"], "the HTTP gateway"),
    "Reencode": "Worker",
    "SetSignalTypes": "what an app declares of its queues",
    "DeclareFunctions": "what an app declares of its queues",
    "WaitJob": "WaitJobs does the same for many",
    "MoveToWaitingChildren": "to be said by the worker that holds the job",
}
"""Commands that are no method of a queue, a handle or the admin client, and why."""


def said_by_clients() -> set[str]:
    """Names of the commands that queues, handles and the admin client make."""
    classes = {spec.request.__name__: name for name, spec in COMMANDS.items()}
    sources = [*(CLIENT / "queue").glob("*.py"), *CLIENT.glob("admin.py"), *CLIENT.glob("server_calls.py")]
    sources += [CLIENT / "options" / "cron.py", CLIENT / "options" / "breaker.py"]
    found = set()
    for source in sources:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in classes:
                    found.add(classes[name])
    return found


def test_every_command_has_a_method() -> None:
    methods = said_by_clients()
    assert methods & ELSEWHERE.keys() == set()
    missing = COMMANDS.keys() - methods - ELSEWHERE.keys()
    assert not missing, f"no method of the client says {sorted(missing)}"
    assert ELSEWHERE.keys() <= COMMANDS.keys()


def test_every_field_of_a_push_is_an_option() -> None:
    renamed = {"group_id": "group", "parent_id": "parent"}
    spread = {
        **dict.fromkeys(["debounce_id", "debounce_ttl"], "debounce"),
        "custom_id": "job_id",
        "children_ids": "",  # flows say it
        "fair": "",  # follows from group and priority
        **dict.fromkeys(set(job.POLICIES.values()) - {""}, "failure_policy"),
    }
    fields = {renamed.get(name, spread.get(name, name)) for name in JobFields.__struct_fields__}
    fields |= {"at", "unique"}  # other words for delay, and for unique_key and dedup
    assert fields - {"", "data", "name"} == set(job.JobOptions.__annotations__)
    arguments = inspect.signature(AsyncQueue.add).parameters
    own = set(Push.__struct_fields__) - set(JobFields.__struct_fields__)
    assert own == {"queue", "req_id", "idempotency_key", "idempotency_hash", "idempotency_age"}
    assert "idempotency_key" in arguments


def test_every_field_of_a_schedule_is_an_option() -> None:
    renamed = {"repeat_every": "every", "max_limit": "limit"}
    fields = {renamed.get(name, name) for name in CronFields.__struct_fields__}
    fields |= {"immediately", "move"}
    assert fields - {"name", "queue", "app"} == set(CronOptions.__annotations__)


def public(kind: type) -> Iterator[tuple[str, object]]:
    for name in dir(kind):
        if not name.startswith("_"):
            yield name, inspect.getattr_static(kind, name)


PAIRS = [
    (AsyncAdmin, Admin),
    (queue.AsyncQueue, blocking.Queue),
    (queue.AsyncJobHandle, blocking.JobHandle),
    (queue.AsyncJobGroup, blocking.JobGroup),
    (queue.AsyncWorkflowHandle, blocking.WorkflowHandle),
    (AsyncFlowGraph, FlowGraph),
    (AsyncFlowBatch, FlowBatch),
]


@pytest.mark.parametrize(("asynchronous", "plain"), PAIRS)
def test_twins_have_the_same_names_parameters_and_words(asynchronous: type, plain: type) -> None:
    theirs = dict(public(plain))
    assert theirs.keys() == {name for name, _ in public(asynchronous)}
    for name, method in public(asynchronous):
        if inspect.isfunction(method):
            twin = theirs[name]
            assert inspect.isfunction(twin)
            first, second = inspect.signature(method), inspect.signature(twin)
            assert list(first.parameters) == list(second.parameters), name
            assert not inspect.iscoroutinefunction(twin)


@pytest.mark.parametrize("kind", [*sum(PAIRS, ()), active_job.ActiveJob])
def test_everything_public_says_what_it_is(kind: type) -> None:
    silent = [name for name, method in public(kind) if inspect.isfunction(method) and not method.__doc__]
    assert silent == []
    methods = [method for _, method in public(kind) if inspect.isfunction(method)]
    assert [method.__name__ for method in methods if "return" not in method.__annotations__] == []


def test_the_values_of_options_are_public() -> None:
    for name in ("Backoff", "Dedup", "Debounce", "Repeat", "JobOptions", "NewJob"):
        assert name in bunqueue.__all__
    assert get_type_hints(job.JobOptions).keys() == job.JobOptions.__annotations__.keys()
