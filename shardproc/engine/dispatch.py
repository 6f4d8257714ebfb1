"""One command, from its handler to its reply.

Every reply of a shard to a command leaves through this module (except those of a batch that could not be
stored, see `resilient`), because two counts must stay in step with the replies:

- ``Client.slow``: the number of answered commands that may be answered late.  A connection may have 50 of
  these in flight; one that is answered but not counted occupies a place until the connection ends.
- ``Outbox.size``: the approximate bytes of payloads in the replies of this batch.  Beyond a bound the server
  sends the replies that it has before it carries out more commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Raw, UnsetType

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import COMMANDS, Command, CommandError, Reply, refused
from bunqueue.protocol.commands.base import RequestId
from bunqueue.protocol.commands.cron import CronReply
from bunqueue.protocol.commands.dlq import DlqReply
from bunqueue.protocol.commands.events import EventsReply, WaitManyReply, WaitReply
from bunqueue.protocol.commands.find import FindReply
from bunqueue.protocol.commands.flows import ChildErrorsReply, ChildValuesReply, FlowReply
from bunqueue.protocol.commands.insight import AttemptsReply
from bunqueue.protocol.commands.jobs import GetLogsReply
from bunqueue.protocol.commands.keys import ReencodeReply
from bunqueue.protocol.commands.monitoring import DashboardQueueReply
from bunqueue.protocol.commands.query import JobReply, JobsReply, ResultReply
from bunqueue.protocol.commands.queues import CleanReply, PriorityCountsReply
from bunqueue.protocol.commands.server import ListQueuesReply
from bunqueue.protocol.commands.workflows import RecordStepsReply, StepsReply, StepView, WorkflowReply

from . import scoped
from .registry import HANDLERS

if TYPE_CHECKING:
    from .state import Client, State


def _bytes(raw: Raw | UnsetType | None) -> int:
    return 0 if raw is None or raw is UNSET else len(memoryview(raw))


def _bytes_of_step(step: StepView) -> int:
    return _bytes(step.result) + _bytes(step.cursor) + len(step.error or "")


_SIZES: Mapping[type, Callable[[Any], int]] = {
    Raw: _bytes,  # a whole reply, encoded by another shard
    JobReply: lambda reply: _bytes(reply.job),
    JobsReply: lambda reply: _bytes(reply.jobs),
    RecordStepsReply: lambda reply: sum(_bytes(each.result) for each in reply.results if each is not None),
    StepsReply: lambda reply: sum(map(_bytes_of_step, reply.data.steps)),
    WorkflowReply: lambda reply: _bytes(reply.data.value) + sum(map(_bytes_of_step, reply.data.steps)),
    FindReply: lambda reply: _bytes(reply.jobs),
    ResultReply: lambda reply: _bytes(reply.result),
    WaitReply: lambda reply: _bytes(reply.result),
    WaitManyReply: lambda reply: sum(_bytes(end.result) + len(end.error or "") for end in reply.ended),
    DlqReply: lambda reply: _bytes(reply.jobs) + _bytes(reply.entries),
    EventsReply: lambda reply: _bytes(reply.events),
    FlowReply: lambda reply: _bytes(reply.data.jobs),
    ChildValuesReply: lambda reply: sum(map(_bytes, reply.data.values.values())),
    ChildErrorsReply: lambda reply: sum(map(len, reply.values.values())),
    AttemptsReply: lambda reply: sum(
        len(each.error or "") + len(each.stack or "") for each in reply.data.attempts
    ),
    GetLogsReply: lambda reply: sum(len(line.message) for line in reply.data.logs),
    CronReply: lambda reply: _bytes(reply.cron.data),
    DashboardQueueReply: lambda reply: sum(map(_bytes, reply.data.dlq_preview)),
    ListQueuesReply: lambda reply: _bytes(reply.queues),
    ReencodeReply: lambda reply: _bytes(reply.on_dead),
    CleanReply: lambda reply: 40 * len(reply.ids),
    PriorityCountsReply: lambda reply: 12 * len(reply.counts),
}
"""Replies that can be large, and how to measure them; all others are small, entry by entry.  Pulls count the
jobs as they take them (`handlers.pull`): that is cheaper than inspecting their replies."""

_NEVER, _WITH_TIMEOUT, _ALWAYS = 0, 1, 2  # whether a command may be answered late

_COUNTED: Mapping[type, int] = {
    spec.request: _ALWAYS if spec.heavy else _WITH_TIMEOUT if spec.parks else _NEVER
    for spec in COMMANDS.values()
    if spec.heavy or spec.parks or spec.reply in _SIZES
}
"""Commands with something to count.  PUSH and ACK are not among them."""


def carry_out(state: State, client: Client, command: Command) -> None:
    """Carry out a command of a client without a scope and put its reply into the outbox, unless the reply
    comes later."""
    handler = HANDLERS.get(type(command), _not_here)
    try:
        reply = handler(state, client, command)
    except CommandError as error:
        reply = refused(error)
    except Exception as error:
        reply = state.on_command_error(command, error)
    if reply is not None:  # `answer`, inlined: once per command on the hottest path
        reply.req_id = command.req_id
        late = _COUNTED.get(type(command))
        if late is not None:
            if late == _ALWAYS or (late and command.timeout):  # type: ignore[attr-defined]
                client.slow += 1
            if (size_of := _SIZES.get(type(reply))) is not None:
                state.out.size += size_of(reply)
        state.out.replies.append((client.conn, reply))


def carry_out_within(state: State, client: Client, command: Command) -> None:
    """`carry_out` for a client that may have a scope: jobs of other queues do not exist for it."""
    if client.scope is None:
        carry_out(state, client, command)
        return
    scoped.hide_jobs(state, client, command)
    try:
        reply = HANDLERS.get(type(command), _not_here)(state, client, command)
    except CommandError as error:
        reply = refused(error)
    except Exception as error:
        reply = state.on_command_error(command, error)
    if reply is not None:
        answer(state, client, command, reply)


def answer(state: State, client: Client, command: Command, reply: Reply) -> None:
    """Answer a command that is not parked."""
    reply.req_id = command.req_id
    send(state, client, reply, slow=is_slow(command))


def answer_late(state: State, client: Client, req_id: RequestId, reply: Reply) -> None:
    """Answer a command that was parked or ran in slices."""
    reply.req_id = req_id
    send(state, client, reply, slow=True)


def send(state: State, client: Client, reply: Reply | Raw, *, slow: bool) -> None:
    """Put a reply with its request id into the outbox.  ``slow``: its command may be answered late."""
    client.slow += slow
    if client.scope is not None:
        reply = scoped.shown(client, reply)
    if (size_of := _SIZES.get(type(reply))) is not None:
        state.out.size += size_of(reply)
    state.out.replies.append((client.conn, reply))


def is_slow(command: Command) -> bool:
    """The same as `Spec.is_slow`, for a decoded command."""
    late = _COUNTED.get(type(command), _NEVER)
    return late == _ALWAYS or (late == _WITH_TIMEOUT and command.timeout > 0)  # type: ignore[attr-defined]


def _not_here(state: State, client: Client, command: Command) -> Reply | None:
    """Refuse a command that the router should have answered."""
    raise CommandError(f"{command.__struct_config__.tag} is not a command for a shard", Code.UNKNOWN_COMMAND)
