"""Handlers in separate processes: for code that uses a lot of CPU, or may crash its process."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import Raw
from msgspec.msgpack import Decoder, Encoder

from bunqueue.client.connection.options import Duration, seconds
from bunqueue.client.options import checks
from bunqueue.errors import BunqueueError, JobStopped, Postpone, ProcessBroken, ProcessDied
from bunqueue.logs import for_people
from bunqueue.protocol.commands import jobs, query
from bunqueue.protocol.commands.workflows import GetSteps, RecordSteps, RecordStepsReply, StepsReply
from bunqueue.worker.active_job import INTERRUPTED, ActiveJob, Ending, JobChannel, stopped
from bunqueue.worker.forks import Origin, uncopied
from bunqueue.worker.processes.messages import (
    Answer,
    Ask,
    Broken,
    Done,
    End,
    FromChild,
    Raised,
    Ready,
    Run,
    Send,
    Setup,
    Stopping,
    ToChild,
    from_child,
    receive,
    send,
)
from bunqueue.worker.reporting.failures import ChildError, made_final
from bunqueue.worker.reporting.results import decode_result

logger = logging.getLogger("bunqueue.worker")

END_PATIENCE = 2.0  # seconds for an idle process to end when it is no longer needed
CHECK_S = 5.0  # seconds of silence until a check that the process is still alive
SENT = jobs.AddLog | query.Progress

_encode = Encoder().encode
_decode_sent: Decoder[jobs.AddLog | query.Progress] = Decoder(SENT)
_decode_asked: Decoder[RecordSteps | GetSteps] = Decoder(RecordSteps | GetSteps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recycle:
    """When a process that runs handlers is replaced by a new one; always between two jobs."""

    jobs: int | None = None
    """After this many jobs."""
    age: Duration | None = None
    """After this time, in ms or as a timedelta."""
    memory: int | None = None
    """Once it uses more bytes than this."""

    def __post_init__(self) -> None:
        for name in ("jobs", "memory"):
            if getattr(self, name) is not None:
                checks.whole(name, getattr(self, name))
        if self.age is not None:
            seconds(self.age, "age")


class Process:
    """One process. Only one thread uses it at a time, except to end it. `prepare` it before its first job."""

    def __init__(self) -> None:
        self.jobs = 0
        self.memory = 0
        self.born_at = time.monotonic()
        self._sending = threading.Lock()
        self._job: ActiveJob | None = None
        with uncopied:
            self._ours, theirs = socket.socketpair()
            # A copy of the worker that a job forks must not keep the process alive after the worker.
            self._origin = Origin(self._ours.close)
            with theirs:
                self._popen = _spawn(theirs.fileno())

    @property
    def is_alive(self) -> bool:
        """Whether it can run a job, as far as can be seen."""
        return self._popen.poll() is None

    def prepare(self, setup: Setup) -> None:
        """Returns when it has imported its handlers. Raises ProcessBroken if it cannot."""
        self._send(setup)
        match self._receive():
            case Ready():
                return
            case Broken(text=text):
                problem = f"it cannot import its handlers: {text}"
            case _:
                problem = f"it {self._death()} before it was ready"
        raise ProcessBroken(f"no process can be started to run handlers in: {problem}")

    def run(self, job: ActiveJob, path: str, channel: JobChannel) -> Any:
        """The handler's result. Raises ChildError, JobStopped if the job was ended before it began, or
        ProcessDied, after which the process is unusable.
        """
        self._job, token = job, job.token
        job.halt = partial(self._halt, job, token)  # the process knows the run by this token
        try:
            job.raise_if_cancelled()  # from now on `halt` handles it
            self.jobs += 1
            self._send(Run(self.jobs, path, job.raw, Raw(_encode(job.data)), token, job.carried))
            while True:
                match self._receive():
                    case (Done() | Raised()) as late if late.run != self.jobs:
                        pass  # from a process that an earlier job has forked
                    case (Send() | Ask()) as late if late.run != self.jobs:
                        self._send(Answer(late.number, BunqueueError.__name__, "its job has ended"))
                    case Send() as sent:
                        self._carry_out(sent, channel)
                    case Ask() as asked:
                        self._answer(asked, channel)
                    case Done() as done:
                        self.memory = done.memory
                        return decode_result(done.result)
                    case Raised() as raised:
                        self.memory = raised.memory
                        if raised.put_back:
                            raise Postpone(raised.delay or 0, raised.text)
                        error = ChildError(raised.text, raised.stack, raised.delay, raised.types)
                        raise made_final(error) if raised.unrecoverable else error
                    case _:
                        raise ProcessDied(
                            f"the process that ran the job {self._death()}", queue=job.queue, job_id=job.id
                        )
        finally:
            self._job = None

    def _receive(self) -> FromChild | None:
        """The next message, or None if the process has died: a grandchild may keep our socket open."""
        poll = select.poll()
        poll.register(self._ours, select.POLLIN)
        while not poll.poll(1000 * CHECK_S):
            if self._popen.poll() is not None:
                return None
        return receive(self._ours, from_child)

    def _carry_out(self, sent: Send, channel: JobChannel) -> None:
        command = _decode_sent.decode(sent.command)
        if not sent.number:
            channel.send_nowait(command)
            return
        try:
            channel.send(command)
            answer = Answer(sent.number)
        except Exception as error:
            answer = Answer(sent.number, type(error).__name__, str(error))
        self._send(answer)

    def _answer(self, asked: Ask, channel: JobChannel) -> None:
        command = _decode_asked.decode(asked.command)
        reply: type[StepsReply | RecordStepsReply]
        reply = StepsReply if isinstance(command, GetSteps) else RecordStepsReply
        try:
            asking = asyncio.run_coroutine_threadsafe(channel.ask(command, reply), channel.loop)
            answer = Answer(asked.number, reply=Raw(_encode(asking.result())))
        except Exception as error:
            answer = Answer(asked.number, type(error).__name__, str(error))
        self._send(answer)

    def _send(self, message: ToChild | FromChild) -> None:
        with self._sending, suppress(OSError):  # if it is dead, reading shows that
            send(self._ours, message)

    def notify_stopping(self) -> None:
        """The worker takes no more jobs."""
        self._send(Stopping())

    # -- ends

    def halt_birth(self, job: ActiveJob) -> None:
        """The job that it was started for has to end: kill it only if the worker is stopping and cannot use
        it.
        """
        if job.ending is not None and job.ending.why == INTERRUPTED:
            self._kill_group()

    def _halt(self, job: ActiveJob, token: str) -> None:
        """Runs in the loop's thread: end the job, and once its grace is over, the process."""
        ending = job.ending
        assert ending is not None
        if ending.grace <= 0:
            self._kill(job)
            return
        self._send(End(token, ending.why, ending.reason))
        asyncio.get_running_loop().call_later(ending.grace, self._kill, job)

    def _kill(self, job: ActiveJob) -> None:
        if self._job is job:
            words = "queue %r: job %s (%s) did not end in time: its process is killed"
            logger.warning(words, job.queue, job.id, job.name)
            self._kill_group()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def _death(self) -> str:
        status = self._popen.wait()
        if status >= 0:
            return f"has ended with status {status}"
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = str(-status)
        hint = " (is memory short?)" if -status == signal.SIGKILL else ""
        return f"was killed by {name}{hint}"

    def hang_up(self) -> None:
        """The process is no longer needed."""
        self._ours.close()

    def close(self) -> None:
        """Returns when it has ended."""
        self.hang_up()
        try:
            self._popen.wait(END_PATIENCE)
        except subprocess.TimeoutExpired:
            self._kill_group()
            self._popen.wait()


def _spawn(descriptor: int) -> subprocess.Popen[bytes]:
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; "
        f"from bunqueue.worker.processes.child import main; main({descriptor})"
    )
    # A separate session: signals of the terminal go only to the worker, and child processes die with it.
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        pass_fds=[descriptor],
        start_new_session=True,
    )


class Processes:
    """Runs jobs in processes, started on demand. `run` is called in as many threads as there may be
    processes.
    """

    def __init__(
        self, paths: list[str], recycle: Recycle, channel: JobChannel, log_level: int | None
    ) -> None:
        self._setup = Setup(paths, log_level, for_people())
        self._recycle = recycle
        self._age = None if recycle.age is None else seconds(recycle.age)
        self._channel = channel
        self._lock = threading.Lock()
        self._idle: list[Process] = []
        self._all: set[Process] = set()
        self._stopped = False

    def run(self, job: ActiveJob, path: str) -> Any:
        """The handler's result. Raises ChildError, JobStopped, ProcessDied or ProcessBroken."""
        process = self._take(job)
        try:
            value = process.run(job, path, self._channel)
        except (ChildError, JobStopped):
            self._give_back(process)
            raise
        except BaseException:
            self._discard(process)
            raise
        self._give_back(process)
        return value

    def _take(self, job: ActiveJob) -> Process:
        while (idle := self._take_idle()) is not None:
            if idle.is_alive:
                return idle
            self._discard(idle)  # it died between two jobs, which costs neither of them an attempt
        return self._begin(job)

    def _begin(self, job: ActiveJob) -> Process:
        """Start a new one. A stopping worker does not wait for it."""
        process = Process()
        with self._lock:
            self._all.add(process)
        job.halt = partial(process.halt_birth, job)
        try:
            job.raise_if_cancelled()
            if not self._stopped:
                process.prepare(self._setup)
                return process
        except BaseException:
            self._discard(process)
            if not self._stopped and job.ending is None:
                raise
        self._discard(process)
        job.ending = job.ending or Ending(INTERRUPTED)
        raise stopped(job, job.ending)

    def _take_idle(self) -> Process | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _give_back(self, process: Process) -> None:
        why = self._recycle_reason(process)
        if why is None:
            with self._lock:
                self._idle.append(process)
        else:
            logger.debug("a process is replaced: %s", why)
            self._discard(process)

    def _recycle_reason(self, process: Process) -> str | None:
        recycle = self._recycle
        if recycle.jobs is not None and process.jobs >= recycle.jobs:
            return f"it has run {process.jobs} jobs"
        if self._age is not None and time.monotonic() - process.born_at >= self._age:
            return "it is too old"
        if recycle.memory is not None and process.memory > recycle.memory:
            return f"it holds {process.memory} bytes"
        return None

    def _discard(self, process: Process) -> None:
        with self._lock:
            self._all.discard(process)
        process.close()

    def notify_stopping(self) -> None:
        """The worker takes no more jobs."""
        with self._lock:
            processes = list(self._all)
        for process in processes:
            process.notify_stopping()

    def stop(self) -> None:
        """End them; blocks for a moment. No new ones are started."""
        with self._lock:
            self._stopped = True
            processes, self._all, self._idle = list(self._all), set(), []
        for process in processes:
            process.hang_up()
        for process in processes:
            process.close()
