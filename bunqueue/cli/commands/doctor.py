"""``bunqueue doctor``: looks for common problems, and says how to fix each."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import typer

from bunqueue.server.settings import SettingsError
from bunqueue.text import plural, span_of

from ..framework import exits
from ..framework.session import Session
from ..framework.shared import verb
from ..framework.values import option
from ..output.output import Column, Kind
from .dropped_letters import KEEP_ALL, dropped_lately

app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)

OK, WARNING, PROBLEM = "ok", "warning", "problem"
FINDINGS = (Column("status", Kind.STATE), Column("check"), Column("finding", Kind.PROSE))

OLD_MS = 600_000
"""The age, in ms, from which a waiting job is probably stuck."""
CLOCK_MS = 2000
"""How far clocks may differ, in ms, before displayed ages and delays are wrong."""
BEHIND_S = 60.0
"""How long changes may wait to be backed up, in seconds."""
LAG_S = 0.25
"""The lag of the router's event loop, in seconds, beyond which every command is late."""
SLOW_MS = 20
"""The mean commit time of a store, in ms, above which it limits a shard's throughput."""
SHORT = 0.8
"""The used part of a shard's memory limit beyond which jobs will soon be refused."""
SOON_MS = 14 * 86_400_000
"""The time, in ms, before the end of an identity or certificate from which to warn."""
ANSWER_MS = 1500
"""The time limit for one question, in ms."""
ENOUGH_S = 3.0
"""After this many seconds nothing more is asked.  With the last answer, that makes at most five seconds."""
MAX_NAMES = 5
MAX_VALUES, MAX_WHERE = 100, 4096
"""The maximum number of values in one condition of a search, and of characters in all of them."""

_MEMORY = "process_resident_memory_bytes"


class Finding(NamedTuple):
    """The result of one check."""

    status: str
    check: str
    finding: str


Folder = Annotated[
    str | None,
    option("--data-dir", about="Check the files of a stopped server instead.", metavar="DIR"),
]


Repair = Annotated[
    bool,
    option("--repair", about="Rebuild damaged files from what can be read, and report what is lost."),
]


@verb(
    app,
    "bunqueue doctor",
    "bunqueue doctor --json | jq '.[] | select(.status != \"ok\")'",
    "bunqueue doctor --data-dir ./data",
    "bunqueue doctor --data-dir ./data --repair",
)
def doctor(session: Session, data_dir: Folder = None, repair: Repair = False) -> None:
    """Look for common problems: storage, shards, clocks, queues without workers, dead letters.

    With --data-dir, it reads all files of a stopped server, and checks that they are intact, that every job
    is in exactly one state, and that the counts are right.

    With --repair as well, it replaces each damaged file with a new one of all that can be read, keeps the old
    file beside it, and reports what was lost. If it is interrupted, run it again.

    For a host of a cluster it also reports what bunqueue cluster check finds.

    With BUNQUEUE_STORE or BUNQUEUE_CONFIG set as for the server, it also checks the database of its store.

    It answers within five seconds: a question without an answer by then is a finding.

    It changes nothing without --repair. Exit status: 1 when there is a problem, 0 when there are at most
    warnings.
    """
    if repair:
        if data_dir is None:
            raise SettingsError("--repair: give the folder with --data-dir; its server must not run")
        from .data_folder.repair import findings as repaired

        for text in repaired(data_dir):
            session.out.note(text)
    if data_dir is None:
        session.timeout_ms = ANSWER_MS
        findings = list(_in_time(_findings(session)))
        findings.sort(key=lambda found: (found.status, found.check) != (PROBLEM, "shards"))
    else:
        from .data_folder.recount import findings as recounted

        findings = [
            Finding(PROBLEM if wrong else OK, check, wrong or found)
            for check, found, wrong in recounted(data_dir)
        ]
        findings.append(_folder(data_dir))
        findings += _database()
    rows = [finding._asdict() for finding in findings]
    session.out.rows(rows, FINDINGS, none="")
    if any(finding.status == PROBLEM for finding in findings):
        raise typer.Exit(exits.FAILED)


def _folder(data_dir: str) -> Finding:
    from bunqueue.server.host.file_permissions import folder_problem

    problem = folder_problem(data_dir)
    return Finding(WARNING if problem else OK, "file modes", problem or "closed to other users")


def _in_time(findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings within ENOUGH_S.  After the first answer, a question without an answer is a finding."""
    from bunqueue.errors import BunqueueError

    end = time.monotonic() + ENOUGH_S
    answered = False
    try:
        for finding in findings:
            answered = True
            yield finding
            if time.monotonic() > end:
                yield Finding(PROBLEM, "doctor", "the server answers slowly: the rest was not asked")
                return
    except BunqueueError as error:
        if not answered:
            raise
        yield Finding(PROBLEM, "doctor", f"the rest was not asked: {getattr(error, 'reason', None) or error}")


def _findings(session: Session) -> Iterator[Finding]:
    admin = session.admin
    yield from _server(session)
    from bunqueue.errors import CommandTimeout, ShardUnavailable, StorageDamaged

    try:
        storage = admin.storage_status()
    except (StorageDamaged, ShardUnavailable, CommandTimeout) as error:
        # Other commands to all shards would fail as well, but the one for the metrics returns what is
        # available.
        yield Finding(PROBLEM, "shards", getattr(error, "reason", None) or str(error))
        yield from _findings_of_live_shards(admin)
        return
    trouble = storage.error or ("the disk is full" if storage.disk_full else None)
    yield Finding(PROBLEM if trouble else OK, "storage", trouble or "everything can be stored")
    yield from _room(storage)
    from .top.numbers import samples_of, server_now

    samples = samples_of(admin.prometheus())
    now = server_now(samples, None, 0)
    yield from _deaths(samples)
    down = [each.name for each in now.processes if not each.up]
    stores = list(_stores(samples))
    yield _shards(down, is_away=any(finding.status == PROBLEM for finding in stores))
    yield _damage(samples)
    yield from stores
    yield from _cluster(admin, samples)
    yield from _database()
    yield from _backup(samples)
    yield from _standby(samples)
    yield _memory(samples)
    lag = samples.get(("event_loop_lag_seconds", frozenset()), 0.0)
    late = lag > LAG_S
    yield Finding(
        WARNING if late else OK,
        "router",
        f"its event loop was {span_of(lag * 1000)} late: is the machine overloaded?" if late else "quick",
    )
    yield _clock(samples)
    yield _readers(samples)
    yield from _ending(samples)
    if any(finding.status == PROBLEM for finding in stores):
        return  # the checks that follow ask for jobs, and would be refused
    workers = admin.list_workers()
    yield from _queues(now, samples, admin.list_queues(), workers)
    yield _unknown_names(admin, now, workers)
    yield from _schedules(admin.list_crons())


def _findings_of_live_shards(admin: Any) -> Iterator[Finding]:
    """The findings of the shards that answer, while one does not."""
    from .top.numbers import samples_of, server_now

    samples = samples_of(admin.prometheus())
    yield from _deaths(samples)
    down = [each.name for each in server_now(samples, None, 0).processes if not each.up]
    if down:
        yield _shards(down, is_away=False)
    yield _damage(samples)
    yield from _stores(samples)
    yield _memory(samples)


def _deaths(samples: Any) -> Iterator[Finding]:
    """Shards that crash repeatedly."""
    for (name, labels), value in samples.items():
        if name == "shard_dies_often":
            of = dict(labels)
            text = f"shard {of['shard']} has died {int(value)} times in the last hour: {of['reason']}"
            yield Finding(PROBLEM, "shards", text)


def _shards(down: list[str], *, is_away: bool) -> Finding:
    """Whether the shards take commands.  ``is_away``: the store of at least some of them is unavailable."""
    if down:
        return Finding(PROBLEM, "shards", f"{_some(down)} down: see the server's log")
    if is_away:
        return Finding(PROBLEM, "shards", "they run, and refuse commands while the store is unavailable")
    return Finding(OK, "shards", "all take commands")


def _damage(samples: Any) -> Finding:
    """The damage that shards have found since they started, and the shards that are out of service."""
    found: list[str] = []
    for (name, labels), value in samples.items():
        shard = dict(labels).get("shard")
        if name == "shard_damaged" and value:
            found.append(f"shard {shard} is out of service")
        if name == "storage_damaged_tables" and value:
            lost = int(samples.get(("storage_unreadable_jobs", labels), 0))
            jobs = f" ({plural(lost, 'job')} cannot be read; lists of jobs show them)" if lost else ""
            found.append(f"shard {shard} has met damage{jobs}")
    fix = "the log names file and table; stop the server and run bunqueue doctor --repair --data-dir DIR"
    if found:
        return Finding(PROBLEM, "files", f"{', '.join(found)}: {fix}")
    return Finding(OK, "files", "no damage was found")


def _stores(samples: Any) -> Iterator[Finding]:
    """The position of each shard in its log, if the server has a store."""
    found: dict[str, dict[str, float]] = {}
    for (name, labels), value in samples.items():
        if name.startswith("store_"):
            found.setdefault(name, {})[dict(labels)["shard"]] = value
    if not found:
        return
    away = [f"shard-{shard}" for shard, value in found["store_away"].items() if value]
    slow = max(found["store_round_trip_seconds"].values()) * 1000
    if away:
        text = f"unavailable to {_some(away)}: commands are refused; bunqueue store check says what is wrong"
        yield Finding(PROBLEM, "store", text)
    elif any(found["store_unprotected"].values()):
        text = "PostgreSQL waits for no standby: what is acknowledged is on one machine; bunqueue store check"
        yield Finding(WARNING, "store", text)
    elif slow > SLOW_MS:
        yield Finding(
            WARNING, "store", f"a commit takes {span_of(slow)}: is a standby far away, or its disk slow?"
        )
    else:
        yield Finding(OK, "store", f"acknowledges; a commit takes {span_of(slow)}")


def _cluster(admin: Any, samples: Any) -> Iterator[Finding]:
    """The findings of `bunqueue cluster check`, if the server is a host of a cluster."""
    if not any(name.startswith("cluster_") for name, _ in samples):
        return
    from .cluster_findings import cluster_findings

    found = admin.cluster_status()
    findings = cluster_findings(found)
    for each in findings:
        yield Finding(each.level, "cluster", f"{each.finding}: {each.fix}")
    if not findings:
        shared = f"{plural(len(found.hosts), 'host')} share {plural(len(found.shards), 'shard')}"
        yield Finding(OK, "cluster", f"{shared}, all have owners and copies")


def _backup(samples: Any) -> Iterator[Finding]:
    """How far what changes is backed up, if the server does that."""
    behind = samples.get(("backup_lag_seconds", frozenset()))
    if behind is None:
        return
    if behind > BEHIND_S or samples.get(("backup_failing", frozenset())):
        waits = f"changes have waited for {span_of(behind * 1000)}"
        yield Finding(PROBLEM, "backup", f"{waits}: the server's log says why they cannot be stored")
    else:
        yield Finding(OK, "backup", "what changes is stored")


def _standby(samples: Any) -> Iterator[Finding]:
    """How far a standby follows its primary, if the server is one."""
    behind = samples.get(("standby_lag_seconds", frozenset()))
    if behind is None:
        return
    if samples.get(("standby_failing", frozenset())):
        text = f"nothing new for {span_of(behind * 1000)}: the server's log says why it cannot be fetched"
        yield Finding(PROBLEM, "standby", text)
    elif behind > BEHIND_S:
        text = f"nothing new for {span_of(behind * 1000)}: does the primary run? if not: bunqueue promote"
        yield Finding(PROBLEM, "standby", text)
    else:
        yield Finding(OK, "standby", f"follows its primary; the last of it is {span_of(behind * 1000)} old")


def _database() -> Iterator[Finding]:
    """The findings of `bunqueue store check`, if the variables or the config file of the server are set."""
    from bunqueue.server.settings.settings import resolve_settings

    settings = resolve_settings({}, os.environ).settings
    if not settings.store:
        return
    from bunqueue.store.check import check
    from bunqueue.store.database import StoreError

    try:
        found = check(settings.store)
    except StoreError as error:
        yield Finding(PROBLEM, "store's database", str(error))
        return
    for each in found:
        fix = f": {each.fix}" if each.fix else ""
        yield Finding(str(each.level), "store's database", f"{each.text}{fix}")


def _room(storage: Any) -> Iterator[Finding]:
    """The free disk space of the shards, and the size of their write-ahead logs."""
    if not storage.rooms:
        return
    free = min(storage.rooms, key=lambda room: room.free - room.refused_below)
    wal = max(room.wal for room in storage.rooms)
    sizes = (
        f"{free.free / 1e6:,.0f} MB free, pushes are refused below {free.refused_below / 1e6:,.0f} MB; "
        f"write-ahead logs up to {wal / 1e6:,.0f} MB, refused beyond {free.wal_limit / 1e6:,.0f} MB"
    )
    warnings = list(dict.fromkeys(storage.warnings))
    yield Finding(WARNING if warnings else OK, "disk", "; ".join(warnings) or sizes)


def _memory(samples: Any) -> Finding:
    """How close the shards are to their memory limits."""
    used = {dict(labels)["process"]: value for (name, labels), value in samples.items() if name == _MEMORY}
    short, full = [], []
    for (name, labels), limit in samples.items():
        if name != "shard_memory_limit_bytes" or not limit:
            continue
        shard = dict(labels)["shard"]
        if samples.get(("shard_memory_full", labels)):
            full.append(f"shard-{shard}")
        elif used.get(f"shard-{shard}", 0) > SHORT * limit:
            short.append(f"shard-{shard}")
    if full:
        text = f"{_some(full)} at the memory limit: pushes are refused; add workers, or raise --memory-limit"
        return Finding(PROBLEM, "memory", text)
    text = f"{_some(short)} near the memory limit: add workers, or raise --memory-limit"
    return Finding(WARNING if short else OK, "memory", text if short else "enough for more jobs")


def _server(session: Session) -> Iterator[Finding]:
    from bunqueue.version import __version__

    admin = session.admin
    info = admin.info()
    off = info.time_ms - time.time() * 1000
    address = session.endpoint.address
    yield Finding(OK, "connection", f"{address} answers in {admin.ping():.1f} ms")
    same = info.version == __version__
    versions = f"server {info.version}, this program {__version__}"
    yield Finding(OK if same else WARNING, "versions", versions)
    apart = abs(off) > CLOCK_MS
    text = f"the server's is {span_of(abs(off))} {'ahead' if off > 0 else 'behind'}: synchronise them"
    yield Finding(WARNING if apart else OK, "clocks", text if apart else "agree")


def _clock(samples: Any) -> Finding:
    """Jumps of the server's wall clock since its shards started."""
    found: dict[str, list[float]] = {}
    for (name, _), value in samples.items():
        found.setdefault(name, []).append(value)
    doubt = max(found.get("clock_doubt_seconds", ()), default=0.0) * 1000
    jumps = found.get("clock_last_jump_seconds", [])
    last = max(jumps, key=abs, default=0.0) * 1000
    if doubt:
        text = f"set forward by {span_of(doubt)}: retention waits up to an hour, in case that was a mistake"
    elif last:
        text = f"has jumped {'forward' if last > 0 else 'back'} by {span_of(abs(last))}: what sets it?"
    else:
        text = "has not jumped"
    return Finding(WARNING if doubt or last else OK, "server's clock", text)


def _readers(samples: Any) -> Finding:
    """Whether other users of the server's machine could read its files when it started."""
    found = [
        dict(labels)["what"]
        for (name, labels), value in samples.items()
        if name == "readable_by_others" and value
    ]
    text = f"others can read the {' and the '.join(found)}: the log of the start says what to do"
    return Finding(WARNING if found else OK, "file modes", text if found else "closed to other users")


def _ending(samples: Any) -> Iterator[Finding]:
    """Identities and certificates that have ended, or soon will."""
    counts = {
        dict(labels)["state"]: int(value) for (name, labels), value in samples.items() if name == "identities"
    }
    if counts:
        ended, ending = counts["ended"], counts["ending"]
        text = f"{ended} have ended, {ending} will within two weeks: bunqueue identity list"
        yield Finding(WARNING if ended or ending else OK, "identities", text if ended or ending else "valid")
    for name, check, expired in (
        ("tls_certificate", "TLS certificate", "has expired: clients refuse the server"),
        (
            "client_certificate",
            "client certificates",
            "the first has expired: bunqueue identity list says whose",
        ),
    ):
        end = samples.get((f"{name}_expires_timestamp_seconds", frozenset()))
        if end is not None:
            left_ms = (end - time.time()) * 1000
            status = PROBLEM if left_ms <= 0 else WARNING if left_ms < SOON_MS else OK
            which = "expires" if name == "tls_certificate" else "the first expires"
            yield Finding(status, check, f"{which} in {span_of(left_ms)}" if left_ms > 0 else expired)


def _queues(now: Any, samples: Any, queues: Any, workers: Any) -> Iterator[Finding]:
    stale = [worker.name for worker in workers if worker.status == "stale"]
    yield Finding(
        WARNING if stale else OK,
        "workers",
        f"not heard of for 30 s: {_some(stale)}" if stale else f"{plural(len(workers), 'worker')} known",
    )
    worked = {name for worker in workers for name in worker.queues}
    paused = {queue.name for queue in queues if queue.paused}
    alone = [each.name for each in now.queues if each.waiting and each.name not in worked]
    yield Finding(
        WARNING if alone else OK,
        "queues without workers",
        f"jobs wait in {_some(alone)}, where no worker has made itself known" if alone else "none",
    )
    old = [f"{each.name} ({span_of(each.oldest)})" for each in now.queues if each.oldest > OLD_MS]
    yield Finding(
        WARNING if old else OK,
        "old jobs",
        f"in {_some(old)}: more workers, or a limit? bunqueue queue jobs QUEUE" if old else "none waits long",
    )
    held = sorted(each.name for each in now.queues if each.name in paused and each.waiting)
    yield Finding(
        WARNING if held else OK,
        "paused queues",
        f"jobs wait in {_some(held)}: bunqueue queue resume QUEUE" if held else "none holds jobs back",
    )
    lost = [f"{queue} ({count:,})" for queue, count in dropped_lately(samples)]
    yield Finding(
        WARNING if lost else OK,
        "dropped dead letters",
        f"gone for good from {_some(lost)}: {KEEP_ALL}" if lost else "none in the last week",
    )
    dead = [f"{each.name} ({each.dlq:,})" for each in now.queues if each.dlq]
    yield Finding(
        WARNING if dead else OK,
        "dead letters",
        f"in {_some(dead)}: bunqueue errors list QUEUE says why" if dead else "none",
    )


def _unknown_names(admin: Any, now: Any, workers: Any) -> Finding:
    """Whether jobs are waiting whose name no worker of their queue knows.  Checked only where all workers
    report what they run."""
    text: dict[str, set[str] | None] = {}
    for worker in workers:
        for queue in worker.queues:
            names = (worker.names_by_queue or {}).get(queue, worker.names)
            known = text.setdefault(queue, set())
            text[queue] = None if known is None or names is None else known.union(names)
    found: list[str] = []
    for each in now.queues:
        names = text.get(each.name)
        if not (each.waiting or each.delayed) or not names or len(names) > MAX_VALUES:
            continue
        where = f"queue = {json.dumps(each.name)} and name != ({', '.join(map(json.dumps, sorted(names)))})"
        if len(where) <= MAX_WHERE:
            jobs = admin.find(state=["waiting", "delayed"], where=where, limit=1)
            found += [f"{job.name!r} in {each.name}" for job in jobs]
    return Finding(
        WARNING if found else OK,
        "unknown names",
        f"jobs wait that nobody runs: {_some(found)}: is a deploy missing?" if found else "none waits",
    )


def _schedules(crons: Any) -> Iterator[Finding]:
    late = [cron.name for cron in crons if cron.next_run_ms < time.time() * 1000 - OLD_MS]
    text = f"should have run: {_some(late)}" if late else f"{plural(len(crons), 'schedule')}, none is late"
    yield Finding(WARNING if late else OK, "schedules", text)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:MAX_NAMES])
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES} more"
