"""What the jobs of a push, a flow or a schedule have to satisfy beyond their types."""

from __future__ import annotations

from bunqueue.model.job import NIL, UNDEFINED
from bunqueue.model.names import queue_name_problem
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.base import path_of
from bunqueue.protocol.commands.core import AddedJob, JobFields, OnDead, Push
from bunqueue.protocol.heads import is_map
from bunqueue.protocol.measure import MAX_BYTES, MAX_DATA, SURELY_SMALL, measure
from bunqueue.protocol.readable import READ_ERRORS, check_readable, excess, reason, shown, unreadable

from ..lifecycle import repeating

MAX_PRIORITY, MAX_GROUP_PRIORITY = 1_000_000, 2_097_151


def check_fields(fields: JobFields | Push, version: int, now: int, where: str = "") -> None:
    """CommandError for values that the types cannot rule out.  Within a group, version 3 has other bounds of
    priority."""
    priority = fields.priority or 0
    if fields.group_id is not None and version >= 3 and not fields.fair:
        if not 0 <= priority <= MAX_GROUP_PRIORITY:
            raise CommandError(
                f"{where}group.priority must be between 0 and {MAX_GROUP_PRIORITY}",
                Code.INVALID_PRIORITY,
                field=path_of(f"{where}group.priority"),
                value=priority,
                bound=MAX_GROUP_PRIORITY,
            )
    elif not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        bound = f"at most {MAX_PRIORITY}" if priority > 0 else f"at least {-MAX_PRIORITY}"
        raise CommandError(
            f"{where}priority must be {bound}",
            Code.INVALID_PRIORITY,
            field=path_of(f"{where}priority"),
            value=priority,
            bound=MAX_PRIORITY if priority > 0 else -MAX_PRIORITY,
        )
    if fields.repeat is not None:
        repeating.check(fields.repeat, now, where)
    check_keeping(fields, where)
    if fields.on_dead is not None:
        _check_on_dead(fields.on_dead, where)
    if fields.workflow:
        check_arguments(bytes(fields.data), where)


def check_keeping(fields: AddedJob, where: str = "") -> None:
    """CommandError for jobs that have a retention time but are also to be removed when they end."""
    if fields.keep_completed is None and fields.keep_failed is None:
        return
    for kept, name, removes, said in (
        (fields.keep_completed, "keepCompleted", fields.remove_on_complete, "removeOnComplete"),
        (fields.keep_failed, "keepFailed", fields.remove_on_fail, "removeOnFail"),
    ):
        if kept is not None and removes:
            raise CommandError(
                f"{where}{name} is {kept:g}, but {said} keeps nothing; leave one of them out",
                Code.INVALID_FIELD,
                field=path_of(f"{where}{name}"),
                value=kept,
            )


def _check_on_dead(on_dead: OnDead, where: str) -> None:
    """Check a job that will be added later."""
    if on_dead.queue is not None and (problem := queue_name_problem(on_dead.queue)):
        field = path_of(f"{where}onDead.queue")
        raise CommandError(f"{where}onDead: {problem}", Code.INVALID_QUEUE, field=field, value=on_dead.queue)
    check_data(bytes(on_dead.data), f"{where}onDead: ")
    check_keeping(on_dead, f"{where}onDead.")


def check_data(data: bytes, where: str = "") -> None:
    """Check that all clients can read the data, and that it is not too large.  Called for all incoming data.

    The limit applies to the JSON text; only payloads that could exceed it are measured.  Some values are much
    longer in MessagePack, so that has a limit as well: a job must be deliverable.
    """
    field = f"{where}data"
    if len(data) <= SURELY_SMALL:
        check_readable(data, field)
        return
    try:
        found = measure(data, MAX_DATA)
    except READ_ERRORS as error:
        raise unreadable(field, reason(error)) from None
    if found.characters > MAX_DATA:
        raise _too_large(data, where, "max 10MB", MAX_DATA)
    if len(data) > MAX_BYTES:
        raise _too_large(data, where, f"{len(data)} bytes of MessagePack, max {MAX_BYTES}", MAX_BYTES)
    if problem := excess(found):
        raise unreadable(field, problem)


def _too_large(data: bytes, where: str, why: str, bound: int) -> CommandError:
    return CommandError(
        f"{where}Job data too large ({why})",
        Code.DATA_TOO_LARGE,
        field=path_of(f"{where}data"),
        value=len(data),
        bound=bound,
    )


def check_arguments(data: bytes, where: str = "") -> None:
    """CommandError unless the data of a workflow is a map of its arguments by name, as every client and
    worker expects."""
    if data in (NIL, UNDEFINED) or is_map(data):
        return
    raise CommandError(
        f"{where}data of a workflow must be an object, its arguments by name",
        Code.INVALID_FIELD,
        field=path_of(f"{where}data"),
        value=shown(data),
        bound="an object",
    )
