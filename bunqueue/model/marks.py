"""What a field of a request or an answer is.  Fields declare it with ``Annotated``."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Mark(enum.Enum):
    """The meaning of a value."""

    QUEUE = "the name of a queue"
    JOB = "the id of a job that the command is about"
    ID = "the id of another job, or the one that a new job is to have"
    NAME = "another name that no two things on a server have: of a schedule, a flow, a worker"
    PAIR = "the name of a queue, a colon, and the id of a job in it"
    TEXT = "a text of the server, which may have such names in it"
    CONTENT = "what a job holds: in an answer, hidden from who may not read; in a request, not for them"


class Holds(NamedTuple):
    """An encoded value, or a map without a type: what it is called in `bunqueue.protocol.hidden`, which knows
    its fields.  ``many``: a list of these."""

    what: str
    many: bool = False


NAMING = frozenset({Mark.QUEUE, Mark.JOB, Mark.ID, Mark.NAME})
"""What has the prefix of its namespace: see `bunqueue.protocol.namespaces`."""

JOB, JOBS, EVENTS = Holds("job"), Holds("job", many=True), Holds("event", many=True)
DEAD_LETTERS, MOMENTS = Holds("dead letter", many=True), Holds("moment", many=True)
ON_DEAD, QUEUES = Holds("on dead"), Holds("queue", many=True)
PULLED, PULLED_JOBS = Holds("pulled job"), Holds("pulled job", many=True)
