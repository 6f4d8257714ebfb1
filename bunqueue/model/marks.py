"""What a field of a request or an answer is.  Fields declare it with ``Annotated``."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Mark(enum.Enum):
    """The meaning of a value."""

    QUEUE = "the name of a queue"
    JOB = "the id of a job that the command is about"
    CONTENT = "what a job holds: in an answer, hidden from who may not read; in a request, not for them"


class Holds(NamedTuple):
    """An encoded value, or a map without a type: what it is called in `bunqueue.protocol.hidden`, which knows
    its fields.  ``many``: a list of these."""

    what: str
    many: bool = False


JOB, JOBS, EVENTS = Holds("job"), Holds("job", many=True), Holds("event", many=True)
DEAD_LETTERS, MOMENTS = Holds("dead letter", many=True), Holds("moment", many=True)
