"""Whether a command stays within the queues that an identity is for, as far as its fields tell.

Every process that carries out commands asks `refusal` before: routers for those that they answer, shards for
all others. What the fields do not tell, such as the queue of a job, is decided where the job is.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct

from bunqueue.model.marks import Mark
from bunqueue.model.scope import Scope, may_not_ask, not_of_server, not_there
from bunqueue.protocol import marked
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands.base import CommandError, Reach, Spec
from bunqueue.protocol.commands.find import Wanted
from bunqueue.protocol.search.wanted import conditions_of

HELD = frozenset({"data", "error"})
"""What can be searched for that jobs hold."""


def refusal(scope: Scope, spec: Spec, command: Struct) -> CommandError | None:
    """Why an identity may not send this command; None if it may, as far as its fields tell."""
    if not scope.is_everywhere:
        if spec.reach is Reach.SERVER and (problem := of_server(scope, spec)) is not None:
            return problem
        for queue in marked.found(Mark.QUEUE, command):
            if not scope.allows(queue):
                return of_queue(scope, spec, queue)
    return None if scope.shows(spec.verbs) else _asking(scope, spec, command)


def of_queue(scope: Scope, spec: Spec, queue: str) -> CommandError | None:
    """Why it may not use a command on a queue; None if it may."""
    if scope.allows(queue):
        return None
    text, bound = not_there(scope, spec.name, spec.verbs, queue), ", ".join(scope.identity.queues)
    return CommandError(text, Code.FORBIDDEN, field="queue", value=scope.outside(queue), bound=bound)


def of_server(scope: Scope, spec: Spec) -> CommandError | None:
    """Why it may not use a command about the whole server; None if it may, or the command is not."""
    if scope.is_everywhere or spec.reach is not Reach.SERVER or not spec.verbs:
        return None
    return CommandError(not_of_server(scope, spec.name), Code.FORBIDDEN)


def _asking(scope: Scope, spec: Spec, command: Struct) -> CommandError | None:
    """Why it may not ask for jobs by what they hold: it would learn that by trying."""
    field = marked.given(command, Mark.CONTENT)
    if field is None and isinstance(command, Wanted) and command.where is not None:
        with suppress(CommandError):  # its shard says what is wrong with the text
            if any(condition.field in HELD for condition in conditions_of(command, 0)):
                field = "where"
    if field is None:
        return None
    return CommandError(may_not_ask(scope, spec.name, field), Code.FORBIDDEN, field=field)
