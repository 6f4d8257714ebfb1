"""AddLog, GetLogs and ClearLogs: log lines that workers write for a job.  Logs live on disk only."""

from __future__ import annotations

from bunqueue.model.job import ACTIVE, Job
from bunqueue.protocol.commands import Data, Ok
from bunqueue.protocol.commands.jobs import (
    MAX_LOG,
    Added,
    AddLog,
    ClearLogs,
    GetLogs,
    GetLogsReply,
    Log,
    LogLine,
)

from ..lookup import find, known_job
from ..outbox import LogEntry
from ..registry import handles
from ..state import Client, State
from .views.insight import next_number, numbered_attempts

MAX_MESSAGE = 65_536  # characters kept of a line


@handles(AddLog)
def add_log(state: State, client: Client, command: AddLog) -> Data[Added]:
    job = known_job(state, command.id)
    kept = job.extra.keep_logs if job.extra is not None else None
    text, most = command.message[:MAX_MESSAGE], MAX_LOG if kept is None else kept
    state.out.logs.append(LogEntry(job.seq, state.now, command.level, text, most))
    return Data(data=Added())


@handles(GetLogs)
def get_logs(state: State, client: Client, command: GetLogs) -> GetLogsReply:
    job = find(state, command.id)
    entries = _log(state, job)
    end = None if command.end in (None, -1) else command.end + 1
    wanted = entries[command.start : end]
    runs = _runs(state, job) if wanted and job is not None else []
    lines = [
        LogLine(entry.message, entry.level, float(entry.at), _attempt_at(runs, entry.at)) for entry in wanted
    ]
    return GetLogsReply(data=Log(lines, len(entries)))


def _runs(state: State, job: Job) -> list[tuple[int, int, int]]:
    """The start, end and number of each attempt, latest first."""
    runs = [
        (attempt.ended_at if attempt.started_at is None else attempt.started_at, attempt.ended_at, number)
        for attempt, number in numbered_attempts(state, job)
    ]
    if job.state == ACTIVE and job.started_at is not None:
        runs.append((job.started_at, state.now, next_number(state, job)))
    return runs[::-1]


def _attempt_at(runs: list[tuple[int, int, int]], at: int) -> int | None:
    return next((number for began, ended, number in runs if began <= at <= ended), None)


@handles(ClearLogs)
def clear_logs(state: State, client: Client, command: ClearLogs) -> Ok:
    job = find(state, command.id)
    if job is not None and _log(state, job):  # reading makes the archive write lines that were just added
        state.out.kept_logs[job.seq] = command.keep_logs or 0
    return Ok()


def _log(state: State, job: Job | None) -> list[LogEntry]:
    return state.archive.log(job.seq) if job is not None else []
