"""Names of a namespace in commands and answers: which fields have them, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec import Raw, Struct
from support.table import table

from bunqueue.model.marks import NAMING, Mark
from bunqueue.model.names import outside, parts_of, prefix_of, record_key
from bunqueue.protocol import namespaces
from bunqueue.protocol.codec import encode_reply
from bunqueue.protocol.commands import COMMANDS, CommandError
from bunqueue.protocol.commands.base import Reach, refused
from bunqueue.protocol.commands.core import JobFields, OnDead, Push, PushBatch
from bunqueue.protocol.commands.cron import CronGet
from bunqueue.protocol.commands.flows import ChildValues, ChildValuesReply
from bunqueue.protocol.commands.workers import RegisterWorker
from bunqueue.protocol.rewriting import _HELD

ACME = "acme/"
MADE = "01890a5d-ac96-774b-bcce-b302099a8057"

NAMED = ("queue", "queues", "id", "ids", "worker", "workers", "owner", "child", "holder", "schedule")
"""Fields that are called so, or end so, have names, unless they are among these."""
OTHERS = {
    ("AddedWebhook", "webhook_id"),
    ("WebhookInfo", "id"),
    ("SetWebhookEnabled", "id"),
    ("RemoveWebhook", "webhook_id"),
    ("TryWebhook", "webhook_id"),
    ("GroupView", "id"),
    ("ErrorGroupView", "id"),
    ("CronView", "schedule"),  # the expression
    ("Cron", "schedule"),
    *((kind, "worker") for kind in ("FindJobs", "ChangeJobs")),  # compared with the name that clients know
}
SCALARS = {"group_id", "signal_id", "broadcast_id", "deduplication_id", "debounce_id", "req_id", "pid"}


def structs() -> Iterator[type[Struct]]:
    """Those of all commands for identities of some queues, of their answers, and within them."""
    seen: set[type[Struct]] = set()
    specs = [spec for spec in COMMANDS.values() if spec.reach is not Reach.SERVER and not spec.internal]
    left: list[Any] = [kind for spec in specs for kind in (spec.request, spec.reply)] + list(_HELD.values())
    while left:
        hint = left.pop()
        if isinstance(hint, type) and issubclass(hint, Struct):
            if hint not in seen:
                seen.add(hint)
                left += get_type_hints(hint, include_extras=True).values()
        else:
            left += get_args(hint)
    return iter(sorted(seen, key=lambda kind: kind.__name__))


def is_text(hint: Any) -> bool:
    """Whether a field has texts: it is one, a list of them, or has them as keys."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return is_text(args[0])
    if origin in (Union, UnionType, list):
        return any(map(is_text, args))
    return is_text(args[0]) if origin is dict else hint is str


def marks_of(hint: Any) -> set[Mark]:
    own = (
        {each for each in get_args(hint)[1:] if isinstance(each, Mark)}
        if get_origin(hint) is Annotated
        else set()
    )
    return own.union(*(marks_of(each) for each in get_args(hint)))


FIELDS = [
    (kind.__name__, name, hint)
    for kind in structs()
    for name, hint in get_type_hints(kind, include_extras=True).items()
    if is_text(hint) and name.rpartition("_")[2] in NAMED and name not in SCALARS
    if (kind.__name__, name) not in OTHERS
]


@table("struct, field, hint", FIELDS)
def test_each_field_that_is_called_like_a_name_is_marked_as_one(struct: str, field: str, hint: Any) -> None:
    assert marks_of(hint) & NAMING, f"{struct}.{field}"


def test_names_get_the_prefix_and_ids_of_the_server_do_not() -> None:
    job = JobFields(job_id="7", depends_on=["8", MADE], on_dead=OnDead(queue="late"), unique_key="acme/k")
    batch = PushBatch(queue="emails", jobs=[job, JobFields()])
    namespaces.enter(ACME, batch)
    assert (batch.queue, job.job_id, job.depends_on) == ("acme/emails", "acme/7", ["acme/8", MADE])
    assert job.on_dead is not None
    assert (job.on_dead.queue, job.unique_key) == ("acme/late", "acme/k")
    namespaces.leave(ACME, batch)
    assert (batch.queue, job.job_id, job.depends_on) == ("emails", "7", ["8", MADE])
    worker = RegisterWorker(name="w", queues=["a"], names_by_queue={"a": ["acme/x"]}, worker_id="w1")
    namespaces.enter(ACME, worker)
    assert (worker.queues, worker.worker_id) == (["acme/a"], "acme/w1")
    assert worker.names_by_queue == {"acme/a": ["acme/x"]}
    same = Push(queue="emails", job_id="7")
    namespaces.enter("", same)
    assert (same.queue, same.job_id) == ("emails", "7")


@table("queue", ["", "a/b", "/a", "beta/a", "acme/a", "a b", "x" * 257])
def test_a_name_that_is_not_valid_is_refused_as_without_a_namespace(queue: str) -> None:
    with pytest.raises(CommandError) as caught:
        namespaces.enter(ACME, Push(queue=queue))
    assert (caught.value.code, caught.value.field) == ("INVALID_QUEUE", "queue")


@table(
    "command, field, bound",
    [
        (Push(queue="x" * 252), "queue", 251),
        (Push(queue="q", job_id="x" * 1020), "id", 1019),
        (CronGet(name="x" * 252), "name", 251),
    ],
)
def test_what_is_too_long_with_the_prefix_is_refused(command: Struct, field: str, bound: int) -> None:
    with pytest.raises(CommandError) as caught:
        namespaces.enter(ACME, command)
    assert (caught.value.code, caught.value.field, caught.value.bound) == ("INVALID_FIELD", field, bound)


@table(
    "text, shown",
    [
        ("Job not found: acme/7", "Job not found: 7"),
        ("queue 'acme/a' is full", "queue 'a' is full"),
        ("acme/acme/7 has ended", "acme/7 has ended"),
        ("see x.acme/7 and beta/acme/7", "see x.acme/7 and beta/acme/7"),
    ],
)
def test_texts_of_the_server_lose_the_prefix(text: str, shown: str) -> None:
    error = CommandError(text, namespaces.Code.JOB_NOT_FOUND, field="id", value="acme/7")
    found = msgspec.msgpack.decode(encode_reply(namespaces.shown(ACME, refused(error))))
    assert (found["error"], found["value"], found["field"]) == (shown, "7", "id")


def test_keys_with_queue_and_id_lose_both_prefixes() -> None:
    values = {f"acme/a:b:{MADE}": Raw(b"\x01"), "acme/a:acme/x:acme/y": Raw(b"\x02")}
    reply = namespaces.shown(ACME, ChildValuesReply(data=ChildValues(values)))
    found = msgspec.msgpack.decode(encode_reply(reply))["data"]["values"]
    assert found == {f"a:b:{MADE}": 1, "a:x:acme/y": 2}


@table("queue, name", [("a", "b"), ("a", "b/c"), ("acme/a", "b/c"), ("a.b:c", ""), ("acme/a", "x|y")])
def test_keys_of_records_lead_back_to_queue_and_name(queue: str, name: str) -> None:
    assert parts_of(record_key(queue, name)) == (queue, name)


def test_what_is_in_no_namespace_has_no_prefix() -> None:
    assert (prefix_of("emails"), prefix_of("acme/emails")) == ("", "acme/")
    assert (outside("emails", "acme/7"), outside("acme/emails", "acme/7")) == ("acme/7", "7")
