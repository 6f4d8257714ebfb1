"""One simulation: hosts, the logs of their shards, clients, and all that may go wrong."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from random import Random

from replication.simulated_log import SimulatedLog, Snapshot
from replication.simulation.books import Books, Wrong
from replication.simulation.clients import QUEUES, Auditor, FlowAuthor, Pusher, Worker
from replication.simulation.host import Host, Kinds, position_of
from replication.simulation.scheduler import STALLS_S, Scheduler

from shardproc.replication import replay

SHARDS = 2
STEPS = 1_500
QUIET_S = 20.0  # without a job: an append that the log has lost is given up, and done again, by then
LIVE = """
    select id from jobs
    where seq not in (select seq from completed union all select seq from dead_letters)
"""
SKEWS_MS = (0, 0, 700, -1_500, 60_000, -60_000)  # of the second host's wall clock


class World:
    """``hosts``: how many, unless that is left to chance."""

    def __init__(self, seed: int, kinds: Kinds, hosts: int | None = None) -> None:
        self.rng = Random(seed)
        rng = self.rng
        duel = rng.random() < 0.4  # two hosts all the time, of which one cannot be heard now and then
        kills, stalls = (
            (0.0, 0.002) if duel else (rng.choice((0, 0.0003, 0.002)), rng.choice((0, 0.0003, 0.001)))
        )
        self.scheduler = Scheduler(rng, kills=kills, stalls=stalls)
        self._misfortunes = DUEL if duel else ALL
        self._often = 0.004 if duel else rng.choice((0.005, 0.01, 0.02))
        rate = rng.choice((0.005, 0.02, 0.05))
        self.logs = [
            SimulatedLog(rng, checks_epochs=kinds.checks_epochs, fault_rate=rate) for _ in range(SHARDS)
        ]
        self.books = Books()
        self.hosts = [
            Host(self.scheduler, name, self.logs, kinds, rng.choice(SKEWS_MS) if name == "b" else 0)
            for name in ("a", "b")[: hosts or (2 if duel else rng.randint(1, 2))]
        ]
        self.is_calm = False  # nothing goes wrong any more, and nothing new is begun
        self.is_over = False  # everything is done
        self.happened: list[str] = []

    def run(self, steps: int = STEPS) -> None:
        with self.scheduler.instead():
            for host in self.hosts if self._misfortunes is DUEL else self.hosts[:1]:
                host.start()
            self.authors = [Pusher(self, "pusher0"), Pusher(self, "pusher1"), FlowAuthor(self, "author")]
            Worker(self, "worker0"), Worker(self, "worker1"), Auditor(self, "auditor")
            for _ in range(steps):
                self._step()
            self._settle()
            jobs = self._finish()
        self.books.check(jobs)
        self._check_logs()

    # -- what happens

    def _step(self) -> None:
        self.go_on()
        if self.rng.random() < self._often:
            host = self.rng.choice(self.hosts)
            self.rng.choice(self._misfortunes)(self, host)

    def go_on(self) -> None:
        chance = self.rng.random()
        if chance < 0.4:
            self.rng.choice(self.logs).step()
        elif chance < 0.9:
            self.scheduler.step()
        else:
            self.scheduler.now += self.rng.choice((0.001, 0.01, 0.1))

    def _note(self, what: str, host: Host) -> None:
        self.happened.append(what)
        self.scheduler.later(self.rng.choice((0.0, 1.0, 6.0)), lambda: self._restart(host))

    def _restart(self, host: Host) -> None:
        if not host.is_on:
            host.start()

    def _snapshot(self, host: Host) -> None:
        number = self.rng.randrange(SHARDS)
        image = host.disks[number].committed()
        if image and (position := position_of(image)) > 0:
            self.happened.append("snapshot")
            self.logs[number].keep(Snapshot(position, image), trim=self.rng.random() < 0.7)

    def _kill_shard(self, host: Host) -> None:
        if (process := self.rng.choice(host.processes)) is not None:
            self.happened.append("shard killed")
            process.task.kill()

    def _stop_shard(self, host: Host) -> None:
        """SIGSTOP, and SIGCONT later."""
        if (process := self.rng.choice(host.processes)) is not None:
            self.happened.append("shard stopped")
            process.task.stopped_until = self.scheduler.now + self.rng.choice(STALLS_S)

    def _stop_host(self, host: Host) -> None:
        self.happened.append("host stopped")
        until = self.scheduler.now + self.rng.choice(STALLS_S)
        for process in host.processes:
            if process is not None:
                process.task.stopped_until = until

    def _kill_router(self, host: Host) -> None:
        if host.is_on:
            host.lose_router()
            self._note("router killed", host)

    def _power_cut(self, host: Host) -> None:
        if host.is_on:
            self._power_off(host)
            self._note("power cut", host)

    def _lose_folder(self, host: Host) -> None:
        """A new machine comes in its place."""
        if host.is_on:
            self._power_off(host)
            self._note("folder lost", host)
            host.lose_folder()

    def _power_off(self, host: Host) -> None:
        host.lose_power(
            [task for task in self.scheduler.tasks if task.mortal and task.ahead_s == host.ahead_s]
        )

    def _stop(self, host: Host) -> None:
        if host.is_on:
            host.stop()
            self._note("stopped in order", host)

    def _fail_over(self, host: Host) -> None:
        """The standby takes over, for all shards at once."""
        self.happened.append("failover of all")
        for log in self.logs:
            log.fail_over()

    def _cut_off(self, host: Host) -> None:
        """It does not reach the logs any more, and its clients still reach it."""
        self.happened.append("cut off")
        host.cut_off_until = self.scheduler.now + self.rng.choice((0.5, 3.0, 7.0, 20.0))

    def _switch(self, host: Host) -> None:
        """Somebody starts the other host, and then stops this one in some way: which it may survive."""
        if len(self.hosts) == 2 and host.is_on:
            other = self.hosts[host is self.hosts[0]]
            self.happened.append("the other host")
            self._restart(other)
            self.rng.choice((self._power_off, Host.stop, Host.lose_router, self._cut_off, self._cut_off))(
                host
            )

    # -- the end

    def _settle(self) -> None:
        """Nothing more goes wrong; one host stays, and works everything off."""
        self.is_calm = True
        self.scheduler.kills = self.scheduler.stalls = 0.0
        for log in self.logs:
            log.faults = False
        for task in self.scheduler.tasks:
            task.stopped_until = 0.0
        for host in self.hosts:
            host.cut_off_until = 0.0
        last = self.rng.choice(self.hosts)
        for host in self.hosts:
            if host is not last:
                self._power_off(host)
                host.start = lambda: None  # type: ignore[method-assign]
        self._restart(last)
        quiet_since = self.scheduler.now
        end = quiet_since + 900
        while self.scheduler.now < end:
            for _ in range(50):
                self.go_on()
            if self._has_jobs(last):
                quiet_since = self.scheduler.now
            elif self.scheduler.now > quiet_since + QUIET_S and not self._is_asked(last):
                return
        raise Wrong(
            "it does not come to an end: " + ", ".join(self._left(last) or ["a command"])
            if last.listens
            else "nobody serves"
        )

    def _has_jobs(self, host: Host) -> bool:
        """Whether there is something left to do, or may be."""
        authors_left = any(author.task in self.scheduler.tasks for author in self.authors)
        return not host.listens or authors_left or bool(self._left(host))

    def _left(self, host: Host) -> list[str]:
        """Jobs that are not finished."""
        found = []
        for disk, process in zip(host.disks, host.processes, strict=True):
            if process is None or not process.ready or disk.user is None:
                return ["a shard is not there, or its file is not yet where its log is"]
            found += [own for (own,) in sqlite3.Connection.execute(disk.user, LIVE)]
        return found

    def _is_asked(self, host: Host) -> bool:
        """Whether commands are under way."""
        return any(any(each.used.values()) for each in host.connections.values())

    def _finish(self) -> list[dict[str, object]]:
        """All jobs, as a client sees them."""
        found: list[dict[str, object]] = []

        class Reader(Auditor):
            def run(self) -> None:
                for queue in QUEUES:
                    reply = self.insist(cmd="GetJobs", queue=queue, limit=10_000)
                    assert reply is not None
                    found.extend(reply["jobs"])
                self.world.is_over = True

        Reader(self, "reader")
        for _ in range(100_000):
            if self.is_over:
                break
            self.go_on()
        for task in list(self.scheduler.tasks):
            task.kill()
        return found

    # -- the logs and the files

    def _check_logs(self) -> None:
        for number, log in enumerate(self.logs):
            records = log.final.records
            if [entry.position for entry in records] != list(range(1, len(records) + 1)):
                raise Wrong("the log has a gap, or a position twice")
            if any(one.epoch > other.epoch for one, other in pairwise(records)):
                raise Wrong("an epoch follows a later one")
            for host in self.hosts:
                if host.disks[number].image:
                    self._check_file(f"shard {number} of {host.name}", host.disks[number].image, log)

    def _check_file(self, name: str, image: bytes, log: SimulatedLog) -> None:
        """A file is what the log makes of nothing, up to some position."""
        position = position_of(image)
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as file:
            file.deserialize(image)
            with closing(sqlite3.connect(":memory:", isolation_level=None)) as twin:
                replay.apply(twin, [entry for entry in log.final.records if entry.position <= position])
                found = replay.differences(file, twin) if position else []
        if found:
            raise Wrong(f"{name}, at position {position}, is not what the log says: {found}")
        if position > len(log.final.records):
            raise Wrong(f"{name} is ahead of the log: {position} of {len(log.final.records)}")


ALL = (
    World._snapshot, World._snapshot, World._kill_shard, World._stop_shard, World._stop_host,
    World._kill_router, World._power_cut, World._lose_folder, World._stop, World._fail_over, World._cut_off,
    World._switch, World._switch,
)  # fmt: skip
DUEL = (World._stop_host, World._cut_off, World._snapshot)


def run(seed: int, kinds: Kinds | None = None) -> World:
    world = World(seed, kinds or Kinds())
    try:
        world.run()
    finally:
        with world.scheduler.instead():
            for task in list(world.scheduler.tasks):
                task.kill()
    return world
