"""Clients of all hosts: they add jobs, flows and results without a pause, and enter what they see.

Each asks one host until that does not answer, and then the next.  Nothing is given up: what was not answered
is asked again, with the same key or token.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any

from chaos.history import Ack, Delivery, Flow, History, Push
from support.wire import Address, ConnectionEnded, Reply, Wire

ANSWER_S = 20.0  # longer than a command may wait for a take-over
DIAL_S = 2.0
LOCK_MS = 20_000
AGAIN_S = 0.1
FOR_NOW = frozenset({"SHARD_UNAVAILABLE", "STORE_UNAVAILABLE", "TIMEOUT", "RATE_LIMITED", "OVERLOADED"})


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
            self.load.trouble.append(time.monotonic())
            await asyncio.sleep(AGAIN_S)  # before the next host is asked
            return None
        if reply.get("ok") or not (reply.get("code") in FOR_NOW or "try again" in reply.get("error", "")):
            return reply
        self.was_cut = True
        self.load.trouble.append(time.monotonic())
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
        self.trouble: list[float] = []  # when a client was not answered
        self.done: list[float] = []  # when a job was completed
        self.adding, self.working = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._workers = workers
        self.cuts = 0

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
            self.history.pushes.append(push)
            while not push.ids:
                reply = await client.ask("PUSH", queue=queue, data=push.key, idempotencyKey=push.key)
                if reply is not None and reply["ok"]:
                    push.ids.append(reply["id"])
                elif reply is not None:
                    self.history.refused.append(f"the push {push.key} was refused: {reply}")
                    break
            if number % 10 == 9 and push.ids:  # a client that is not sure asks twice
                if (
                    again := await client.ask("PUSH", queue=queue, data=push.key, idempotencyKey=push.key)
                ) is not None:
                    push.ids.append(again["id"])
            await asyncio.sleep(0.02)  # the machine is small, and has three hosts to run
        client.close()

    async def _flow(self, client: Client) -> None:
        for number in itertools.count():
            if not self.adding.is_set():
                break
            ids = [f"flow-{number}-{part}" for part in range(3)]
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
            reply = await client.ask("PULL", queue=queue, owner=client.name, lockTtl=LOCK_MS, timeout=50)
            if client.was_cut:
                self.cuts += 1
            if reply is not None and not reply["ok"]:
                self.history.refused.append(f"a pull was refused: {reply}")
            elif reply is not None and reply.get("job"):
                await self._run(client, queue, reply["job"], reply["token"])
        client.close()

    async def _run(self, client: Client, queue: str, job: dict[str, Any], token: str) -> None:
        at = time.monotonic()
        started_s = max(0.0, time.time() - job["startedAt"] / 1000)  # one machine, one clock
        until = at - started_s + LOCK_MS / 1000
        late = self.cuts > 0 or job["attempts"] > 1
        self.history.deliveries.append(
            Delivery(job["id"], job["data"], queue, client.name, token, at, until, late)
        )
        result = f"{job['id']} by {token}"
        unsure = False
        while True:
            reply = await client.ask("ACK", id=job["id"], token=token, result=result)
            if reply is None:
                unsure = True
            elif reply["ok"]:
                self.history.acks.append(Ack(job["id"], token, result))
                self.done.append(time.monotonic())
                return
            else:
                if not unsure and time.monotonic() < until:
                    self.history.refused.append(
                        f"{client.name} held {job['id']}, and its ACK was refused: {reply}"
                    )
                return
