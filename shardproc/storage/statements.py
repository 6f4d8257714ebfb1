"""Every statement that changes a shard's file, numbered permanently.

The replicated log contains numbers and parameters but no SQL, so a record means the same to every later
version. A number is never reused, and the meaning of its text never changes: a statement that must do
something else gets the next number, and the old one stays for records that were written with it. Statements
depend on nothing but the file and their parameters: not on a clock, on randomness, or on an order that SQLite
is free to choose.
"""

from __future__ import annotations

BY_NUMBER: dict[int, str] = {}
NUMBER_OF: dict[str, int] = {}


def _numbered(number: int, sql: str) -> str:
    if number in BY_NUMBER or sql in NUMBER_OF:
        raise ValueError(f"statement {number} is declared twice")
    BY_NUMBER[number], NUMBER_OF[sql] = sql, number
    return sql


# The usual rows have statements of their own that leave columns to their defaults: binding a null costs
# sqlite3 half a microsecond, as it looks for an adapter first.
INSERT_FRESH = _numbered(
    1,
    "insert into jobs (seq, id, queue_id, name, priority, created_at, run_at, data) values (?,?,?,?,?,?,?,?)",
)
INSERT_LOCK = _numbered(
    2,
    "insert into locks (seq, token, owner, ttl, started_at, conn) values (?,?,?,?,?,?)",
)
INSERT_SUCCESS = _numbered(
    3,
    "insert into completed (queue_id, seq, started_at, finished_at, attempts, worker, result) values "
    "(?,?,?,?,?,?,?)",
)
INSERT_JOB = _numbered(
    4,
    "insert into jobs (seq, id, queue_id, name, priority, created_at, run_at, attempts, stalls, "
    "error, unique_key, holds_key, timeline, lost_token, timed_out, options, data, extra, own_id) "
    "values (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
)
UPDATE_JOB = _numbered(
    5,
    "update jobs set priority=?, created_at=?, run_at=?, attempts=?, stalls=?, error=?, unique_key=?, "
    "holds_key=?, timeline=?, lost_token=?, timed_out=?, options=?, data=?, extra=? where seq=?",
)
PUT_LOCK = _numbered(6, "insert or replace into locks values (?,?,?,?,?,?,?,?,?,?)")
PUT_COMPLETED = _numbered(7, "insert or replace into completed values (?,?,?,?,?,?,?,?,?,?)")
PUT_LARGE = _numbered(8, "insert or replace into large_outcomes values (?,?,?)")
PUT_DEAD_LETTER = _numbered(9, "insert or replace into dead_letters values (?,?,?,?,?,?,?,?,?,?,?)")
PUT_ATTEMPT = _numbered(10, "insert or replace into attempts values (?,?,?,?,?,?,?,?)")
PUT_RECORD = _numbered(11, "insert or replace into records values (?,?,?)")
DELETE_RECORD = _numbered(12, "delete from records where kind = ? and key = ?")
PUT_LOG = _numbered(
    13,
    "insert into job_logs select ?, coalesce(max(number), 0) + 1, ?, ?, ? from job_logs where seq = ?",
)
TRIM_LOG = _numbered(
    14,
    "delete from job_logs where seq = ? and number <= (select max(number) from job_logs where seq = ?) - ?",
)
DELETE_QUEUE = _numbered(15, "delete from queues where id = ?")
PUT_QUEUE = _numbered(16, "insert into queues (id, name, created_at) values (?,?,?)")
COUNT = _numbered(17, "update queues set completed = completed + ?, failed = failed + ? where id = ?")
PUT_META = _numbered(18, "insert or replace into meta values (?,?)")
PUT_STRAGGLER = _numbered(19, "insert or ignore into stragglers values (?)")
NEW_STRAGGLERS = _numbered(
    20,
    "insert or ignore into stragglers select seq from jobs where seq >= ? and seq < ? and not exists "
    "(select 1 from completed where completed.queue_id = jobs.queue_id and completed.seq = jobs.seq) "
    "and not exists (select 1 from dead_letters where dead_letters.seq = jobs.seq)",
)
OLD_STRAGGLERS = _numbered(
    21,
    "delete from stragglers where seq > ? and seq <= ? and not exists (select 1 from jobs where "
    "jobs.seq = stragglers.seq and not exists (select 1 from completed where completed.queue_id = "
    "jobs.queue_id and completed.seq = jobs.seq) and not exists (select 1 from dead_letters where "
    "dead_letters.seq = jobs.seq) )",
)
DELETE_LOCKS = _numbered(22, "delete from locks where seq between ? and ?")
DELETE_COMPLETED = _numbered(23, "delete from completed where queue_id = ? and seq = ?")
DELETE_LARGE = _numbered(24, "delete from large_outcomes where seq = ?")
DELETE_DEAD = _numbered(25, "delete from dead_letters where seq = ?")
DELETE_JOBS = _numbered(26, "delete from jobs where seq between ? and ?")
DELETE_ATTEMPTS = _numbered(27, "delete from attempts where seq between ? and ?")
DELETE_LOGS = _numbered(28, "delete from job_logs where seq between ? and ?")
PURGE_DEAD = _numbered(29, "delete from dead_letters where seq between ? and ?")
PURGE_COMPLETED = _numbered(30, "delete from completed where queue_id = ? and seq between ? and ?")
PURGE_LARGE = _numbered(31, "delete from large_outcomes where seq between ? and ?")
APPEND_EVENTS = _numbered(32, "insert into events (first_seq, at, count, payload) values (?,?,?,?)")
APPEND_PUSHED = _numbered(33, "insert into events (first_seq, at, count, payload, pushed) values (?,?,?,?,?)")
REWRITE_EVENTS = _numbered(34, "update events set payload = ? where first_seq = ?")
FORGET_EVENTS = _numbered(35, "delete from events where first_seq < ?")
FORGET_CONNECTIONS = _numbered(36, "update locks set conn = 0 where conn <> 0")
DELETE_META = _numbered(37, "delete from meta where key = ?")
ADD_RECORD = _numbered(38, "insert or ignore into records values (?,?,?)")
MOVE_RETRIES = _numbered(
    39,
    "update dead_letters set next_retry_at = next_retry_at - :by where seq > :after and seq <= :until "
    "and next_retry_at is not null and finished_at > :now and finished_at <= :last",
)
MOVE_CREATED = _numbered(
    40,
    "update jobs set created_at = min(created_at - :by, :now), run_at = run_at - iif(run_at > :now, "
    ":by, 0) where seq > :after and seq <= :until and created_at > :now and created_at <= :last",
)
MOVE_EVENTS = _numbered(
    41,
    "update events set at = min(at - :by, :now) where first_seq > :after and first_seq <= :until and "
    "at > :now and at <= :last",
)
MOVE_DEAD_LETTERS = _numbered(
    42,
    "update or ignore dead_letters set started_at = iif(started_at > :now, min(started_at - :by, "
    ":now), started_at), finished_at = iif(finished_at > :now, min(finished_at - :by, :now), "
    "finished_at) where seq > :after and seq <= :until and finished_at > :now and finished_at <= "
    ":last",
)
MOVE_ATTEMPTS = _numbered(
    43,
    "update or ignore attempts set started_at = iif(started_at > :now, min(started_at - :by, :now), "
    "started_at), ended_at = iif(ended_at > :now, min(ended_at - :by, :now), ended_at) where seq > "
    ":after and seq <= :until and ended_at > :now and ended_at <= :last",
)
MOVE_LOGS = _numbered(
    44,
    "update or ignore job_logs set at = iif(at > :now, min(at - :by, :now), at) where seq > :after "
    "and seq <= :until and at > :now and at <= :last",
)
MOVE_COMPLETED = _numbered(
    45,
    "update or ignore completed set started_at = iif(started_at > :now, min(started_at - :by, :now), "
    "started_at), finished_at = iif(finished_at > :now, min(finished_at - :by, :now), finished_at) "
    "where queue_id = :queue and seq > :after and seq <= :until and finished_at > :now and "
    "finished_at <= :last",
)

# Workflows: 60 to 79
INSERT_RUN_JOB = _numbered(
    60,
    "insert into jobs (seq, id, queue_id, name, priority, created_at, run_at, attempts, stalls, "
    "error, unique_key, holds_key, timeline, lost_token, timed_out, options, data, extra, own_id, run, "
    "waits) values (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
)
UPDATE_RUN_JOB = _numbered(
    61,
    "update jobs set priority=?, created_at=?, run_at=?, attempts=?, stalls=?, error=?, unique_key=?, "
    "holds_key=?, timeline=?, lost_token=?, timed_out=?, options=?, data=?, extra=?, run=?, waits=? "
    "where seq=?",
)
# Most steps: they completed at their first attempt.
INSERT_STEP = _numbered(
    62,
    "insert into steps (seq, number, name, started_at, ended_at, worker, arguments, result) "
    "values (?,?,?,?,?,?,?,?)",
)
PUT_STEP = _numbered(
    63,
    "insert into steps (seq, number, name, kind, status, attempts, started_at, ended_at, until, worker, "
    "arguments, signal, key, source, child, child_queue, undo, error, cursor, input, result) "
    "values (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
)
UPDATE_STEP = _numbered(
    64,
    "update steps set status=?, attempts=?, ended_at=?, until=?, worker=?, error=?, "
    "cursor=coalesce(?, cursor), undo=max(undo, ?), result=? where seq=? and number=?",
)
END_STEP = _numbered(
    65,
    "update steps set status=?, ended_at=?, error=?, result=?, source=?, input=null "
    "where seq=? and number=? and ended_at is null",
)
SET_CHILD = _numbered(66, "update steps set child=?, input=null where seq=? and number=?")
MOVE_BROADCASTS = _numbered(
    67,
    "update broadcasts set at = min(at - :by, :now), expires_at = expires_at - :by "
    "where at > :now and at <= :last",
)
SET_RESULT = _numbered(68, "update steps set result=? where seq=? and number=?")
DELETE_STEPS = _numbered(69, "delete from steps where seq between ? and ?")
DELETE_SOME_STEPS = _numbered(70, "delete from steps where seq=? and number between ? and ?")
PUT_SIGNAL = _numbered(
    71,
    "insert into signals (seq, number, name, at, expires_at, signal_id, data) values (?,?,?,?,?,?,?)",
)
TAKE_SIGNAL = _numbered(72, "update signals set taken_by=?, data=null where seq=? and number=?")
DELETE_SIGNALS = _numbered(73, "delete from signals where seq between ? and ?")
DELETE_SIGNAL = _numbered(74, "delete from signals where seq=? and number=?")
PUT_BROADCAST = _numbered(
    75, "insert into broadcasts (id, name, key, at, expires_at, data) values (?,?,?,?,?,?)"
)
DELIVERED = _numbered(76, "update broadcasts set delivered=1 where id=?")
DELETE_BROADCAST = _numbered(77, "delete from broadcasts where id=?")
MOVE_STEPS = _numbered(
    78,
    "update steps set until = iif(started_at > :now and started_at <= :last, until - :by, until), "
    "started_at = iif(started_at > :now and started_at <= :last, min(started_at - :by, :now), started_at), "
    "ended_at = iif(ended_at > :now and ended_at <= :last, min(ended_at - :by, :now), ended_at) "
    "where seq > :after and seq <= :until and (started_at > :now or ended_at > :now)",
)
MOVE_SIGNALS = _numbered(
    79,
    "update signals set at = min(at - :by, :now), expires_at = expires_at - :by "
    "where seq > :after and seq <= :until and at > :now and at <= :last",
)
# The expiries of jobs with a retention time of their own.
PUT_EXPIRY = _numbered(
    87, "insert or replace into expiries (seq, queue_id, finished_at, at) values (?,?,?,?)"
)
DELETE_EXPIRIES = _numbered(88, "delete from expiries where seq between ? and ?")
MOVE_EXPIRIES = _numbered(
    89,
    "update expiries set at = at - finished_at + min(finished_at - :by, :now), finished_at = "
    "min(finished_at - :by, :now) where seq > :after and seq <= :until and finished_at > :now and "
    "finished_at <= :last",
)
PUT_NOTE = _numbered(
    90,
    "insert or replace into attempt_notes (seq, number, ended_at, error_type, delay) values (?,?,?,?,?)",
)
DELETE_NOTES = _numbered(91, "delete from attempt_notes where seq between ? and ?")
MOVE_NOTES = _numbered(
    92,
    "update or ignore attempt_notes set ended_at = min(ended_at - :by, :now) where seq > :after and seq <= "
    ":until and ended_at > :now and ended_at <= :last",
)
REOPEN_WAITS = _numbered(
    101,
    "update steps set status='waiting', ended_at=null, error=null where seq=? "
    "and kind in ('sleep', 'signal') and status='cancelled' and error=?",
)

# 110 and above: summaries that let a search skip blocks.
PUT_BLOCK = _numbered(110, "insert or replace into search_blocks values (?,?,?,?)")
PUT_FINISHES = _numbered(111, "insert or replace into search_finishes values (?,?,?)")
FIND_FINISHES = _numbered(
    112,
    "insert or replace into search_finishes select :block, min(at), max(at) from (select "
    "coalesce(completed.finished_at, dead_letters.finished_at) as at from jobs left join completed on "
    "completed.queue_id = jobs.queue_id and completed.seq = jobs.seq left join dead_letters on "
    "dead_letters.seq = jobs.seq where jobs.seq between :first and :last) "
    "where at is not null group by at / 60000",
)
DROP_BLOCKS = _numbered(
    113,
    "delete from search_blocks where block between :first and :last and not exists (select 1 from jobs "
    "where jobs.seq between block * :size and block * :size + :size - 1)",
)
DROP_FINISHES = _numbered(
    114,
    "delete from search_finishes where block between :first and :last and not exists (select 1 from jobs "
    "where jobs.seq between block * :size and block * :size + :size - 1)",
)
FORGET_BLOCKS = _numbered(
    115,
    "delete from search_blocks where until > :now or block in (select block from search_finishes where "
    "until > :now)",
)
FORGET_FINISHES = _numbered(116, "delete from search_finishes where until > :now")

# Jobs without options whose identity is known.
INSERT_NAMED = _numbered(
    120,
    "insert into jobs (seq, id, queue_id, name, priority, created_at, run_at, data, options) "
    "values (?,?,?,?,?,?,?,?,?)",
)

# About this file alone, and so not numbered: another file of the same shard has its own.
PUT_APPLIED = "insert or replace into meta values ('applied', ?)"  # the last record of the log in this file
LOCAL = frozenset(
    {
        "insert or replace into meta values (?, ?)",  # which data folder the file belongs to
        "insert or replace into meta values ('probe', zeroblob(?))",
        "delete from meta where key = 'probe'",
        PUT_APPLIED,
    }
)

# 130 and above: signals whose data does not fit. A signal that was set aside has `taken_by` 0, which is not
# the number of any step, and the reason before its data, as `run_writes.set_aside` makes it.
SET_ASIDE = _numbered(130, "update signals set taken_by=0, data=? where seq=? and number=?")
REOPEN_WAIT = _numbered(
    131,
    "update steps set status='waiting', attempts=attempts+1, ended_at=null, result=null, source=null, "
    "input=? where seq=? and number=?",
)
SET_INPUT = _numbered(132, "update steps set input=? where seq=? and number=? and ended_at is null")
LEAVE_STEP = _numbered(
    133, "update steps set status='cancelled', error=?, result=null, source=null where seq=? and number=?"
)
PASS_SIGNAL = _numbered(134, "update signals set taken_by=? where seq=? and taken_by=?")
FORGET_TAKEN = _numbered(135, "delete from signals where seq=? and taken_by>0 and at<?")
