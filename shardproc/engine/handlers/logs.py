"""AddLog, GetLogs and ClearLogs: what workers say about a job.  Logs live on disk alone."""

from __future__ import annotations

from bunqueue.model.job import Job
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Ok
from bunqueue.protocol.commands.jobs import (
    MAX_LOG,
    Added,
    AddLog,
    AddLogReply,
    ClearLogs,
    GetLogs,
    GetLogsReply,
    Log,
    LogLine,
)

from ..lookup import find
from ..outbox import LogEntry
from ..state import Client, State

MAX_MESSAGE = 65_536  # characters of a line that are kept


def add_log(state: State, client: Client, command: AddLog) -> AddLogReply:
    job = find(state, command.id)
    if job is None:
        raise CommandError("Job not found", Code.JOB_NOT_FOUND)
    kept = job.extra.keep_logs if job.extra is not None else None
    text, most = command.message[:MAX_MESSAGE], MAX_LOG if kept is None else kept
    state.out.logs.append(LogEntry(job.seq, state.now, command.level, text, most))
    return AddLogReply(data=Added())


def get_logs(state: State, client: Client, command: GetLogs) -> GetLogsReply:
    job = find(state, command.id)
    entries = _log(state, job)
    end = None if command.end in (None, -1) else command.end + 1
    wanted = [LogLine(entry.message, entry.level, float(entry.at)) for entry in entries[command.start : end]]
    return GetLogsReply(data=Log(wanted, len(entries)))


def clear_logs(state: State, client: Client, command: ClearLogs) -> Ok:
    job = find(state, command.id)
    if job is not None and _log(state, job):  # looking has what was added before written
        state.out.kept_logs[job.seq] = command.keep_logs or 0
    return Ok()


def _log(state: State, job: Job | None) -> list[LogEntry]:
    return state.archive.log(job.seq) if job is not None else []
