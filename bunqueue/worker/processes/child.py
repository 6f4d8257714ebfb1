"""A process that runs handlers for a worker, one job at a time: `python -c "... main(FD)"`.

It has no connection to a server: commands of handlers go through the worker. It is killed together with the
worker, whatever it is doing, so it cannot conflict with the worker that takes the job over.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from queue import SimpleQueue
from types import FrameType
from typing import Any

from msgspec import Raw, Struct, msgpack
from msgspec.msgpack import Decoder, Encoder

from bunqueue import errors
from bunqueue.client.connection.background_loop import portal
from bunqueue.client.connection.replies import R
from bunqueue.errors import BunqueueError, Postpone
from bunqueue.logs import ForPeople, log_for_people
from bunqueue.process_stats import memory
from bunqueue.protocol.commands.workflows import RecordSteps, RecordStepsReply, StepRecord
from bunqueue.worker.active_job import ActiveJob, Ending, Handler, current, stopped
from bunqueue.worker.forks import Origin, end_copy
from bunqueue.worker.job_channel import DONE, IN_A_COPY
from bunqueue.worker.log_context import JobLogFilter, jobs_in_pools
from bunqueue.worker.middleware import Middleware, around_steps
from bunqueue.worker.processes.handler_path import imported, object_at
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
    receive,
    send,
    to_child,
)
from bunqueue.worker.reporting.failures import (
    checked,
    chosen_delay,
    error_stack,
    error_text,
    error_types,
    is_final,
    postponed,
    well_formed,
)
from bunqueue.worker.reporting.results import encode_result
from bunqueue.workflow.channel import Answers, AroundStep

_encode = Encoder().encode
_decode = Decoder().decode


class Child:
    """Everything except `_listen` happens in the main thread, which also receives signals."""

    def __init__(self, sock: socket.socket) -> None:
        self.stopping = False
        self._sock = sock
        self._sending = threading.Lock()
        self._runs: SimpleQueue[Run | None] = SimpleQueue()  # None: the worker has gone
        self._replies: SimpleQueue[Answer] = SimpleQueue()
        self._asking = threading.Lock()
        self._asked = 0
        self._job: ActiveJob | None = None
        self._end: End | None = None  # the last one; it may arrive before its job has begun
        self._shielded = False  # a frame is being sent: an interruption would leave half of it
        self._handlers: dict[str, Handler] = {}
        self._number = 0  # the number of the run
        self._origin = Origin(self._sock.close)

    def serve(self) -> None:
        """Serve until the worker has gone."""
        setup = receive(self._sock, to_child)
        if not isinstance(setup, Setup):
            return
        try:
            with _logging(setup.logging):
                self._handlers = imported(setup.paths)
        except BaseException as error:
            self._send(Broken(error_text(error)))
            return
        if setup.log_level is not None:
            from bunqueue.worker.job_logging import forward

            forward(setup.log_level, self)
        signal.signal(signal.SIGTERM, self._interrupt)
        _keep_for_itself(signal.SIGTERM)
        threading.Thread(target=self._listen, name="bunqueue-child", daemon=True).start()
        self._send(Ready())
        while (run := self._runs.get()) is not None:
            self._number = run.number
            outcome = self._outcome(run)
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError):  # nobody reads the stream any more
                    stream.flush()
            self._send(outcome)

    def _outcome(self, run: Run) -> Done | Raised:
        job = ActiveJob(run.job, run.token, self)
        try:
            value = self._run(job, run)
            if self._origin.is_left:
                end_copy(True, value)
            return Done(run.number, encode_result(value), memory())
        except BaseException as raised:
            if self._origin.is_left:
                end_copy(False, raised)
            self._job = None
            error = checked(job, raised)
            delay = postponed(error) if isinstance(error, Postpone) else chosen_delay(job, error)
            put_back = isinstance(error, Postpone)
            text = well_formed(str(error)) if put_back else error_text(error)
            stack, final, types = error_stack(error), is_final(error), error_types(error)
            return Raised(run.number, text, stack, final, put_back, delay, types, memory())

    def _run(self, job: ActiveJob, run: Run) -> Any:
        job.data = run.data
        job.open()
        outer = current.set(job)
        self._job = job
        try:
            self._apply(self._end)
            job.raise_if_cancelled()
            with ExitStack() as around:
                given = [
                    around.enter_context(object_at(path)(**_decode(values))) for path, values in run.around
                ]
                self.around_step = around_steps([each for each in given if isinstance(each, Middleware)])
                return self._handlers[run.path](job)
        finally:
            self._job = None
            current.reset(outer)

    def _apply(self, end: End | None) -> bool:
        """Whether this is about the running job."""
        job = self._job
        if job is None or end is None or end.token != job.token:
            return False
        job.ending = Ending(end.why, end.reason)
        return True

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """SIGTERM: the running job has to end. A SIGTERM at any other time is ignored."""
        job = self._job
        if job is not None and job.ending is not None and not self._shielded:
            raise stopped(job, job.ending)

    def _listen(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while (message := receive(self._sock, to_child)) is not None:
            match message:
                case Run():
                    self._runs.put(message)
                case Answer():
                    self._replies.put(message)
                case End():
                    self._end = message
                    if self._apply(message):
                        signal.pthread_kill(main, signal.SIGTERM)
                case Stopping():
                    self.stopping = True
        if self._job is not None:
            os._exit(1)
        self._runs.put(None)

    # -- commands of handlers, see `JobChannel`

    def send(self, command: Struct) -> Awaitable[None]:
        self._request(Send, command)
        return DONE

    def _request(self, kind: type[Send | Ask], command: Struct) -> Raw:
        if self._origin.is_left:
            raise BunqueueError(IN_A_COPY)
        job, number = self._job, self._number
        if job is not None and getattr(command, "id", job.id) != job.id:
            raise BunqueueError("its job has ended")  # from a thread left behind by another job
        with self._asking:
            self._asked += 1
            self._send(kind(number, self._asked, _raw(command)))
            while (answer := self._replies.get()).number != self._asked:
                pass  # the reply to a call that was given up
        if answer.error:
            raise _error(answer)
        return answer.reply

    def send_nowait(self, command: Struct) -> None:
        if not self._origin.is_left:
            self._send(Send(self._number, 0, _raw(command)))

    # -- its steps, see `FlowChannel`

    short_ms = 0.0
    around_step: AroundStep | None = None  # of the running job
    observers = ()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return portal().loop

    def record(self, job: ActiveJob, records: list[StepRecord]) -> asyncio.Future[Answers]:
        return asyncio.ensure_future(self._record(RecordSteps(queue=job.queue, steps=records)))

    async def _record(self, command: RecordSteps) -> Answers:
        return (await self.ask(command, RecordStepsReply)).results

    async def ask(self, command: Struct, reply: type[R]) -> R:
        return msgpack.decode(await asyncio.to_thread(self._request, Ask, command), type=reply)

    async def in_thread(self, function: Callable[[], Any], *, of_its_own: bool = False) -> tuple[bool, Any]:
        raise NotImplementedError("steps run in the main thread of a process")

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _send(self, message: FromChild) -> None:
        main = threading.current_thread() is threading.main_thread()
        with self._sending:
            self._shielded = main or self._shielded
            try:
                send(self._sock, message)
            finally:
                self._shielded = False if main else self._shielded
        job = self._job
        if main and job is not None and job.ending is not None:  # the signal may have come in the meantime
            raise stopped(job, job.ending)


def _logging(configured: ForPeople | None) -> AbstractContextManager[None]:
    """Log as the worker's process does, unless the handlers' modules configure logging themselves."""
    return nullcontext() if configured is None else log_for_people(*configured, JobLogFilter())


def _keep_for_itself(number: signal.Signals) -> None:
    """Processes forked by the job's code get the default signal handler, from their first moment on."""
    mask = signal.pthread_sigmask

    def begin() -> None:
        signal.signal(number, signal.SIG_DFL)
        mask(signal.SIG_UNBLOCK, [number])

    os.register_at_fork(
        before=lambda: mask(signal.SIG_BLOCK, [number]),
        after_in_parent=lambda: mask(signal.SIG_UNBLOCK, [number]),
        after_in_child=begin,
    )


def _raw(command: Struct) -> Raw:
    return Raw(_encode(command))


def _error(answer: Answer) -> BunqueueError:
    kind: Callable[[str], BunqueueError] = getattr(errors, answer.error, BunqueueError)
    return kind(answer.text)


def main(descriptor: int) -> None:
    """The entry point of the process."""
    sys.argv[:] = ["bunqueue-child"]
    with (
        socket.socket(fileno=descriptor) as sock,
        suppress(BrokenPipeError, ConnectionError),
        jobs_in_pools(),
    ):
        sock.set_inheritable(False)
        Child(sock).serve()
