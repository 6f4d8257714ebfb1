"""What the declared functions of a queue mean for a job that is added: its options, and whether it is valid.

Options that are not sent are those of the function. Pushes to a queue without functions only read
``queue.functions``.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.msgpack import Decoder

from bunqueue.model.functions import ACCEPT, MANY_CALLS, REFUSE, InvalidJobs
from bunqueue.model.job import DEFAULT_NAME, NIL, UNDEFINED
from bunqueue.model.json_schema import MAX_WORK, Budget, misfit
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError
from bunqueue.protocol.commands.base import path_of
from bunqueue.protocol.commands.core import JobFields, Push
from bunqueue.protocol.encoded import is_envelope

from ..memory.functions import Functions, Known

WORK_EACH = 30  # parts checked for each job of a batch, on average, beyond the first MAX_WORK; 1 µs each
MAX_WARNINGS = 5  # in a reply
SHOWN_NAMES = 10
_BESIDE = {
    "keep_completed": "remove_on_complete",
    "remove_on_complete": "keep_completed",
    "keep_failed": "remove_on_fail",
    "remove_on_fail": "keep_failed",
}
"""Options of which a job may have one only."""

_decode = Decoder().decode


def fill(functions: Functions, fields: JobFields | Push, now: int) -> Known | None:
    """Give a job the options of its function that were not sent; returns the function, if there is one."""
    known = functions.find(fields.name or DEFAULT_NAME, now)
    if known is not None and known.options:
        for name, value in known.options.items():
            if _is_absent(fields, name) and not (name in _BESIDE and _is_sent(fields, _BESIDE[name])):
                setattr(fields, name, value)
    return known


def _is_absent(fields: JobFields | Push, name: str) -> bool:
    value = getattr(fields, name)
    return value is UNSET or value is None or (value is False and name in ("fair", "workflow"))


def _is_sent(fields: JobFields | Push, name: str) -> bool:
    return getattr(fields, name) not in (UNSET, None, False)


def admit(
    functions: Functions,
    queue: str,
    pushed: Sequence[JobFields | Push],
    payloads: Sequence[bytes],
    now: int,
    where: str = "",
) -> list[str]:
    """Fill in the options of pushed jobs, and check the jobs; returns warnings.  CommandError for one that is
    to be refused.  ``where``: a prefix of error texts, with the place of the job as "{}"."""
    warnings: list[str] = []
    budget = Budget(MAX_WORK + WORK_EACH * len(pushed))
    for place, (fields, data) in enumerate(zip(pushed, payloads, strict=True)):
        known = fill(functions, fields, now)
        if known is None:
            policy: InvalidJobs = functions.unknown
            problem = None if policy == ACCEPT else _unknown(functions, queue, fields, now)
        else:
            policy = known.invalid_jobs
            problem = None if policy == ACCEPT else _unfit(known, queue, data, budget)
        if problem is None:
            continue
        prefix = where.format(place)
        text = f"{prefix}{problem}"
        if policy == REFUSE:
            functions.refused += len(pushed)
            raise problem.within(text, path_of(f"{prefix}{problem.field}"))
        functions.warned += 1
        if len(warnings) < MAX_WARNINGS:
            warnings.append(text)
    return warnings


def _unknown(functions: Functions, queue: str, fields: JobFields | Push, now: int) -> CommandError:
    name = fields.name or DEFAULT_NAME
    names = sorted(name for name in functions.names if functions.find(name, now))
    shown = ", ".join(names[:SHOWN_NAMES]) + (", ..." if len(names) > SHOWN_NAMES else "")
    text = f"no app has declared a function {name!r} for queue {queue!r}; there are {shown or 'none'}"
    return CommandError(text, Code.UNKNOWN_FUNCTION, field="name", value=name, bound=shown)


def _unfit(known: Known, queue: str, data: bytes, budget: Budget) -> CommandError | None:
    """Why the data of a job does not fit.  Data encoded by a program can only be checked by that program."""
    if known.schema is None:
        return None
    value = {} if data in (NIL, UNDEFINED) else _decode(data)
    if is_envelope(value) or (type(value) is dict and MANY_CALLS in value):
        return None
    found = misfit(known.schema, value, budget)
    if found is None:
        return None
    where = f" at {found.path}" if found.path else ""
    dot = "" if not found.path or found.path.startswith("[") else "."
    return CommandError(
        f"the data of {known.name!r} (queue {queue!r}) is {found.found}{where},"
        f" and {found.expected} is expected",
        Code.ARGUMENTS_UNFIT,
        field=f"data{dot}{found.path}",
        value=found.found,
        bound=found.expected,
    )
