"""The ways in which a run of a workflow can end, besides a result or an error."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from bunqueue.errors import JobSuspended, Unrecoverable


class Unwind(BaseException):
    """Ends a branch of a run in which nothing more may happen. Not for users: `except Exception` does not
    catch it, and using the flow in a `finally` raises it again.
    """


class SuspendRun(JobSuspended):
    """The run was suspended to wait for any of these groups of steps."""

    def __init__(self, groups: Sequence[Sequence[str]]) -> None:
        names = [name for group in groups for name in group]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        super().__init__(f"its workflow waits for {shown}")
        self.groups = groups


class ContinueRun(JobSuspended):
    """The workflow starts again, with this data."""

    code = "job_continued"

    def __init__(self, data: Raw) -> None:
        super().__init__("its workflow begins again")
        self.data = data


class Undone(Unrecoverable):
    """All finished steps of a workflow have been undone; it ends with its original error."""

    code = "undone"


class UndoFailed(Unrecoverable):
    """A step of a workflow cannot be undone."""

    code = "undo_failed"
