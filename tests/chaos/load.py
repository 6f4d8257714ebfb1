"""Clients of all hosts: they add jobs, flows and results without a pause, and enter what they see.

Each asks one host until that does not answer, and then the next.  Nothing is given up: what was not answered
is asked again, with the same key or token.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from chaos.history import Ack, Delivery, Flow, History, Push
from support.budget import budget
from support.wire import Address, ConnectionEnded, Reply, Wire

ANSWER_S = 20.0  # longer than a command may wait for a take-over
DIAL_S = 2.0
LOCK_MS = 20_000
DELAY_S, DELAYED_EACH = 1.5, 10  # one of so many jobs waits for so long
PACE_S = budget(0.05, 0.02)  # from one job to the next
PARTS = 3  # of a flow
MAX_BEHIND = 300  # jobs that wait for a worker: more would only be a long end
AGAIN_S = 0.1
NOBODY = "no answer"
FOR_NOW = frozenset({"SHARD_UNAVAILABLE", "STORE_UNAVAILABLE", "TIMEOUT", "RATE_LIMITED", "OVERLOADED"})


NO_ROOM = frozenset({"STORAGE_FULL", "STORAGE_FAILED"})


class Trouble(NamedTuple):
    """A client was refused, or cut off: the code, or NOBODY."""

    at: float
    code: str


class Wait(NamedTuple):
    """How long a client had to ask until a job of its was acknowledged."""

    begun: float
    ended: float


class Client:
    """One connection at a time."""

    def __init__(self, load: Load, name: str, first: int) -> None:
        self.load, self.name = load, name
        self._hosts = itertools.cycle([*load.hosts[first:], *load.hosts[:first]])
        self._wire: Wire | None = None
        self.was_cut = False  # since the last look of whoever asks

    async def ask(self, cmd: str, **fields: Any) -> Reply | None:
        """The answer; None if nobody can say what became of it, or it is to be asked again."""
        try:
            if self._wire is None or not self._wire.alive:
                async with asyncio.timeout(DIAL_S):
                    self._wire = await Wire.open(next(self._hosts))
            async with asyncio.timeout(ANSWER_S):
                reply = await self._wire.call(cmd, **fields)
        except (OSError, TimeoutError, ConnectionEnded):
            self.close()
            self.was_cut = True
            self.load.trouble.append(Trouble(time.monotonic(), NOBODY))
            await asyncio.sleep(AGAIN_S)  # before the next host is asked
            return None
        code = reply.get("code")
        if code in NO_ROOM:
            self.load.history.without_room.append((time.monotonic(), f"{cmd} was refused: {reply}"))
        elif reply.get("ok") or not (code in FOR_NOW or "try again" in reply.get("error", "")):
            return reply
        self.was_cut = True
        self.load.trouble.append(Trouble(time.monotonic(), code or "try again"))
        await asyncio.sleep(AGAIN_S)  # what was refused for the moment is asked again
        return None

    def close(self) -> None:
        if self._wire is not None:
            self._wire.abort()
            self._wire = None


class Load:
    """All of them."""

    def __init__(self, hosts: Sequence[Address], queues: Sequence[str], *, workers: int = 6) -> None:
        self.hosts, self.queues = hosts, queues
        self.history = History()
        self.trouble: list[Trouble] = []
        self.waits: list[Wait] = []
        self.done: list[float] = []  # when a job was completed
        self.adding, self.working = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._workers = workers
        self._ended: set[str] = set()  # jobs that a worker has brought to an end, perhaps unheard
        self.cuts = 0

    @property
    def behind(self) -> int:
        """About how many jobs have been added, and are not done."""
        return len(self.history.pushes) + PARTS * len(self.history.flows) - len(self._ended)

    def start(self) -> None:
        self.adding.set()
        self.working.set()
        jobs = [
            self._push(Client(self, f"p{n}", n % len(self.hosts)), queue)
            for n, queue in enumerate(self.queues)
        ]
        jobs += [self._work(Client(self, f"w{n}", n % len(self.hosts))) for n in range(self._workers)]
        jobs.append(self._flow(Client(self, "f", 0)))
        self._tasks = [asyncio.create_task(job) for job in jobs]

    async def stop_adding(self) -> None:
        self.adding.clear()
        await asyncio.gather(*self._tasks[: len(self.queues)], self._tasks[-1])

    async def stop(self) -> None:
        self.working.clear()
        await asyncio.gather(*self._tasks)

    async def _push(self, client: Client, queue: str) -> None:
        for number in itertools.count():
            if not self.adding.is_set():
                break
            push = Push(f"{queue}/{number}", queue)
            fields = {"queue": queue, "data": push.key, "idempotencyKey": push.key}
            if number % DELAYED_EACH == 4:
                push.delayed_from = time.monotonic()
                push.due = push.delayed_from + DELAY_S
                fields["delay"] = int(DELAY_S * 1000)
            self.history.pushes.append(push)
            begun = push.first_sent = time.monotonic()
            while not push.ids:
                push.last_sent = time.monotonic()
                reply = await client.ask("PUSH", **fields)
                if reply is not None and reply["ok"]:
                    push.ids.append(reply["id"])
                elif reply is not None:
                    self.history.refused.append(f"the push {push.key} was refused: {reply}")
                    break
            self.waits.append(Wait(begun, time.monotonic()))
            if number % 10 == 9 and push.ids:  # a client that is not sure asks twice
                push.last_sent = time.monotonic()
                if (again := await client.ask("PUSH", **fields)) is not None:
                    if again["ok"]:
                        push.ids.append(again["id"])
                    else:
                        self.history.refused.append(f"the push {push.key} was refused when repeated: {again}")
            # The machine is small, has three hosts to run, and the workers may be far behind.
            await asyncio.sleep(PACE_S if self.behind < MAX_BEHIND else 10 * PACE_S)
        client.close()

    async def _flow(self, client: Client) -> None:
        for number in itertools.count():
            if not self.adding.is_set():
                break
            ids = [f"flow-{number}-{part}" for part in range(PARTS)]
            flow = Flow(ids)
            self.history.flows.append(flow)
            links: list[dict[str, Any]] = [
                {"childrenIds": ids[1:], "dependsOn": ids[1:]},
                {"parentId": ids[0]},
                {"parentId": ids[0]},
            ]
            jobs = [
                {
                    "id": job,
                    "queue": self.queues[(number + part) % len(self.queues)],
                    "input": {"data": {"of": job}, **link},
                }
                for part, (job, link) in enumerate(zip(ids, links, strict=True))
            ]
            reply = await client.ask("PUSHF", jobs=jobs)
            flow.added = reply is not None and reply["ok"]
            if reply is not None and not reply["ok"]:
                self.history.refused.append(f"the flow {ids} was refused: {reply}")
            await asyncio.sleep(0.2)  # flows are few
        client.close()

    async def _work(self, client: Client) -> None:
        rest = itertools.cycle(self.queues)
        while self.working.is_set():
            queue = next(rest)
            client.was_cut = False
            asked = time.monotonic()
            reply = await client.ask("PULL", queue=queue, owner=client.name, lockTtl=LOCK_MS, timeout=50)
            if client.was_cut:
                self.cuts += 1
            if reply is not None and not reply["ok"]:
                self.history.refused.append(f"a pull was refused: {reply}")
            elif reply is not None and reply.get("job"):
                await self._run(client, queue, reply["job"], reply["token"], asked)
        client.close()

    async def _run(self, client: Client, queue: str, job: dict[str, Any], token: str, asked: float) -> None:
        """``asked``: when the pull was sent, which is before the lock began, whatever clocks there are."""
        at = time.monotonic()
        until = asked + LOCK_MS / 1000
        late = self.cuts > 0 or job["attempts"] > 1
        self.history.deliveries.append(
            Delivery(job["id"], job["data"], queue, client.name, token, at, until, late)
        )
        result = f"{job['id']} by {token}"
        await self._end(client, job["id"], token, result, until)
        self._ended.add(job["id"])

    async def _end(self, client: Client, job: str, token: str, result: str, until: float) -> None:
        """Complete a job, by asking until there is an answer."""
        unsure = False
        while True:
            reply = await client.ask("ACK", id=job, token=token, result=result)
            if reply is None:
                unsure = True
            elif reply["ok"]:
                self.history.acks.append(Ack(job, token, result))
                self.done.append(time.monotonic())
                return
            else:
                if not unsure and time.monotonic() < until:
                    self.history.refused.append(f"{client.name} held {job}, and its ACK was refused: {reply}")
                return
