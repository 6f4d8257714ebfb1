"""What options of jobs are made of that are more than a number or a text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import Literal, Protocol

from bunqueue.client.connection.options import Duration
from bunqueue.protocol.commands.core import KeyState


class HasId(Protocol):
    """A handle, a job, or whatever else has the id of one."""

    @property
    def id(self) -> str: ...


JobRef = str | HasId
"""A job: its id, or anything that has it."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait before a retry: `delay` before the first. With each further one an "exponential" wait is
    doubled, a "linear" one grows by `delay`, and a "constant" one stays the same. Each is longer or shorter
    by a random part of up to `jitter`, 0.1 being a tenth, so that jobs that failed together do not come back
    together; 0 turns that off.

    No wait is longer than `max_delay`, which is an hour, or `delay` if that is longer. Instead of all that
    `delays` may name the waits one after the other; the last one repeats. With `retry_after` an exception
    that says how long to wait is obeyed (see `bunqueue.retry_after`), up to `max_delay`.
    """

    delay: Duration = 1000
    type: Literal["constant", "fixed", "linear", "exponential"] = "exponential"
    """"fixed" is another word for "constant"."""
    jitter: float = 0.1
    max_delay: Duration | None = None
    delays: Sequence[Duration] | None = None
    retry_after: bool = False


OnConflict = Literal["keep", "replace", "extend", "reject", "supersede"]
"""What happens to a job whose unique key is taken:

- `keep`: it is not added, and the handle is that of the job that is there;
- `replace`: it takes the place of a job that waits; beside one that runs or has ended it is added, too;
- `extend`: as `keep`, and the key is held for another `ttl` from now on;
- `reject`: `DuplicateJob` is raised;
- `supersede`: as `replace`, but a job that runs is cancelled, and this one starts when that has stopped.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedup:
    """What becomes of a job whose `unique_key` another one holds. It goes with `unique_key`.

    Without any of these the job is not added, as long as the other one waits or runs.
    """

    ttl: Duration | None = None
    """How long the key is held from now on, whether the job still waits, runs, has completed or failed; a job
    that is cancelled or removed gives it up. Without a `ttl`, until the job has ended."""
    extend: bool = False
    """Another word for `on_conflict="extend"`."""
    replace: bool = False
    """Take the place of the holder, which is removed unless it runs. An error if jobs depend on it. With a
    `ttl`, another word for `on_conflict="replace"`."""
    on_conflict: OnConflict | None = None
    """What happens when the key is taken; "keep" unless given."""
    states: Iterable[KeyState] | None = None
    """The states of the holder in which the key is taken, instead of those above."""
    grace: Duration = 10_000
    """How long a job that is superseded may take to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """One job of a kind for the same arguments: `unique=Unique(by="order", within=timedelta(minutes=5))`.

    The key is made of the job's name and its arguments, so it stands instead of `unique_key` and `dedup`.
    """

    by: str | Collection[str] | Callable[..., object] | None = None
    """The arguments that count: one name, several, or None for all. With `@app.job` also a function of the
    arguments that it names, as for `group`."""
    within: Duration | None = None
    """At most one in such a time, also after it has completed or failed. None: at most one that has not
    ended."""
    states: Iterable[KeyState] | None = None
    """Only while the other job is in one of these states."""
    on_conflict: OnConflict = "keep"
    """What happens when there is such a job already."""
    grace: Duration = 10_000
    """How long a job that is superseded may take to stop."""


@dataclass(frozen=True, slots=True)
class Debounce:
    """Run once it has been quiet for a while: each job with the same key takes the place of the one that
    waits, and restarts its delay. It stands for `unique_key`, `delay` and `Dedup(replace=True)`."""

    key: str
    wait: Duration


@dataclass(frozen=True, slots=True)
class Repeat:
    """Add the job again each time that it has completed: to run `every` later, or at the next time of a cron
    expression."""

    every: Duration | None = None
    limit: int | None = None
    """So many times; without end unless given."""
    _: KW_ONLY
    pattern: str | None = None
    """A cron expression instead of `every`: 5 fields, 6 with leading seconds, or @hourly, @daily, ..."""
    tz: str | None = None
    """For `pattern`, an IANA name such as Europe/Rome; UTC unless given."""
    start: datetime | float | None = None
    """No repetition runs before: an aware datetime, or epoch ms."""
    end: datetime | float | None = None
    """No repetition runs after it."""


OnFailure = Literal["fail", "ignore", "continue", "remove", "wait"]
"""What the failure of a child, after its last attempt, means for its parent:

- `fail`: the parent fails, too, and with it its own parent if that says so;
- `ignore`: the parent runs when the others are done, and gets the error;
- `continue`: the parent runs at once, does not wait for the others, and gets the error;
- `remove`: the parent runs when the others are done, and gets nothing;
- `wait`: the parent waits on, for somebody to retry the child.
"""
POLICIES: dict[str, str] = {
    "fail": "fail_parent_on_failure",
    "ignore": "ignore_dependency_on_failure",
    "continue": "continue_parent_on_failure",
    "remove": "remove_dependency_on_failure",
    "wait": "",
}
"""The field that each is on the wire; none for what holds when nothing is said."""
