"""Ownership of schedule names: a name belongs to one queue on the whole server, and to one app if an app
declares it.

Each schedule is stored on the shard of its queue.  So before a shard sets a new schedule that must not take
its name from another one, it asks all other shards.  If two are set at the same time, their shards ask each
other, and the lower shard gets the name.
"""

from __future__ import annotations

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.cron import Cron
from bunqueue.server.links import peers as messages

from ...memory.timetable import Claim
from ...peer_calls import Steps
from ...registry import answers
from ...scoped import allows
from ...state import Client, State


def claim(state: State, client: Client, command: Cron) -> Steps:
    """Claim a name; CommandError if it belongs to another schedule, which the command does not move.  The
    caller must set the schedule at once, without yielding."""
    if client.scope is not None and client.scope.reserves(command.name):
        raise _unusable(command.name)
    claims = state.timetable.claims
    mine = Claim(command.queue, command.app or "")
    claims.setdefault(command.name, []).append(mine)
    try:
        _check_here(state, client, command)
        others = [shard for shard in range(state.shards) if shard != state.shard]
        question = messages.CronClaim(command.name, mine.queue, mine.app)
        holders = yield [(shard, question) for shard in others]
    finally:
        claims[command.name].remove(mine)
        if not claims[command.name]:
            del claims[command.name]
    for holder in holders:
        if holder.queue and not (command.move and allows(client, holder.queue)):
            raise _taken(client, command.name, holder.queue, holder.app)
    if mine.lost_to is not None:
        raise _taken(client, command.name, *mine.lost_to)
    _check_here(state, client, command)  # another command may have set it meanwhile


def _check_here(state: State, client: Client, command: Cron) -> None:
    known = state.timetable.by_name.get(command.name)
    if known is None:
        return
    other_app = None not in (known.app, command.app) and known.app != command.app
    if command.move and allows(client, known.queue):
        return
    if known.queue != command.queue or other_app:
        raise _taken(client, known.name, known.queue, known.app or "")


@answers(messages.CronClaim)
def answer_claim(state: State, source: int, message: messages.CronClaim) -> messages.CronHolder:
    known = state.timetable.by_name.get(message.name)
    if known is not None:
        return messages.CronHolder(known.queue, known.app or "")
    rivals = state.timetable.claims.get(message.name, [])
    if rivals and state.shard < source:
        return messages.CronHolder(rivals[0].queue, rivals[0].app)
    for rival in rivals:
        rival.lost_to = message.queue, message.app
    return messages.CronHolder()


def _taken(client: Client, name: str, queue: str, app: str) -> CommandError:
    if not allows(client, queue):
        return _unusable(name)
    whose = f"queue {queue!r}" + (f", declared by app {app!r}" if app else "")
    return CommandError(
        f"The schedule name {name!r} belongs to {whose}: give this schedule another name, or delete that one"
        f" first (bunqueue cron delete {name})",
        Code.SCHEDULE_CONFLICT,
        field="name",
        value=name,
    )


def _unusable(name: str) -> CommandError:
    text = f"The schedule name {name!r} cannot be used: give this schedule another name"
    return CommandError(text, Code.SCHEDULE_CONFLICT, field="name", value=name)
