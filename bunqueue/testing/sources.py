"""Turn what a test gives to `drain` into the workers that it describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from msgspec import Struct

from bunqueue.app.bunqueue import Bunqueue
from bunqueue.app.service import Service
from bunqueue.client.codecs.codec import Codec
from bunqueue.client.codecs.incoming import decoded
from bunqueue.client.codecs.outgoing import encoded
from bunqueue.client.connection.options import shown
from bunqueue.protocol.commands.core import FAIR, GroupRule
from bunqueue.worker.active_job import Handler
from bunqueue.worker.job_runner import RunConfig
from bunqueue.worker.outcomes import Callbacks
from bunqueue.worker.routes import PROCESS, THREAD, Table, Work
from bunqueue.worker.worker import Worker

if TYPE_CHECKING:
    from .engine import SandboxEngine

WHAT = "a worker, an app, a dict of handlers by queue, or a handler"
Source = Worker | Bunqueue | Mapping[str, Handler] | Handler
"""A worker, an app, handlers by queue, or a handler for the jobs of all queues."""
LOCK_TTL = 30_000  # ms, the default of workers


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker to be made for a drain."""

    queues: tuple[str, ...] | None
    """None: the queues that no other worker takes."""
    run: RunConfig
    callbacks: Callbacks = field(default_factory=Callbacks)
    codec: Codec | None = None
    opens_all: bool = True
    """Whether it reads everything that a codec of the test can read. If not, it reads only what its own codec
    can."""
    group: GroupRule = FAIR
    lock_ttl: int = LOCK_TTL

    def outgoing(self, command: Struct) -> Struct:
        """A command as this worker sends it."""
        return command if self.codec is None else encoded(self.codec, command)

    def incoming(self, payload: bytes, command: Struct, engine: SandboxEngine) -> bytes:
        """The answer to a command as this worker reads it."""
        if self.opens_all:
            return engine.opened(payload)
        return payload if self.codec is None else decoded(self.codec, payload, command)


class Sources:
    """The workers and apps that a test has given. TypeError for an object that runs no jobs."""

    def __init__(self, given: tuple[Source, ...]) -> None:
        if not given:
            raise TypeError(f"give what runs the jobs: {WHAT}")
        self._given = [_checked(source) for source in given]
        self._services = {
            app: Service(app) for app in self._given if isinstance(app, Bunqueue)
        }  # raises OptionError for an app without jobs
        self._begun: list[Service] = []

    def declarations(self, *, schedules: bool = True) -> Iterator[Struct]:
        """The commands that apps send to a server when they start: schedules and limits."""
        for app, service in self._services.items():
            codec = app._endpoint.codec
            for command in service.declarations(schedules=schedules):
                yield command if codec is None else encoded(codec, command)

    def wants_any(self, engine: SandboxEngine) -> bool:
        """Whether there is a job that one of them runs. A pause or a limit may still hold it back."""
        return any(engine.waiting(queue) for source in self._given for queue in _queues_of(source, engine))

    async def begin(self) -> list[WorkerSpec]:
        """Run the startup hooks of the apps, and return the workers in the given order."""
        specs = []
        for source in self._given:
            if isinstance(source, Worker):
                specs.append(_spec_of(source))
            elif isinstance(source, Bunqueue):
                service = self._services[source]
                if source._service is not None:  # it also works on its own, and has started long ago
                    workers = service._make_workers()
                else:
                    self._begun.append(service)
                    workers = await service.begin()
                specs += [_spec_of(worker) for worker in workers]
            elif isinstance(source, Mapping):
                specs += [WorkerSpec((queue,), _run_of(handler)) for queue, handler in source.items()]
            else:
                specs.append(WorkerSpec(None, _run_of(source)))
        return specs

    async def finish_hooks(self) -> None:
        """Wait for hooks that run in the background."""
        for service in self._begun:
            await service.finish_hooks()

    async def finish(self) -> None:
        """Run the shutdown hooks of the apps."""
        while self._begun:
            await self._begun.pop().finish()


def _checked(source: Source) -> Source:
    if isinstance(source, Worker | Bunqueue | Mapping) or callable(source):
        return source
    raise TypeError(f"{shown(source)} runs no jobs; give {WHAT}")


def _queues_of(source: Source, engine: SandboxEngine) -> Iterable[str]:
    if isinstance(source, Worker):
        return source.queues
    if isinstance(source, Bunqueue):
        return source.handlers
    return source if isinstance(source, Mapping) else engine.queues()


def _run_of(handler: Work) -> RunConfig:
    return RunConfig(table=_in_this_process(Table(handler)))


def _spec_of(worker: Worker) -> WorkerSpec:
    config = worker._config
    return WorkerSpec(
        worker.queues,
        replace(config.run, table=_in_this_process(config.run.table)),
        config.callbacks,
        worker._endpoint.codec,
        opens_all=False,
        group=config.fetch.group,
        lock_ttl=config.fetch.lock_ttl,
    )


def _in_this_process(table: Table) -> Table:
    """The same table, with the functions that would otherwise run in processes of their own."""
    here = copy(table)
    here.of_queue = {queue: _in_this_process(each) for queue, each in table.of_queue.items()}
    here.plans = {
        name: replace(plan, executor=THREAD, path="") if plan.executor == PROCESS else plan
        for name, plan in table.plans.items()
    }
    return here
