"""Hosts of a cluster as processes of this machine."""

from __future__ import annotations

import secrets
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from support.server import Server, dispose, quiet_port
from support.waiting import wait_until

from bunqueue.model.ids import slot_of_queue
from bunqueue.store.database import conninfo

OWNERS = """
    select shards.id, coalesce(hosts.name, '') from bunqueue.shards
    left join bunqueue.hosts on hosts.id = split_part(shards.owner, '/', 1) order by 1
"""
QUEUES = tuple(f"q{number}" for number in range(16))  # of all shards


class Hosts:
    """All hosts of one cluster."""

    def __init__(self, store: str, folder: Path, shards: int) -> None:
        self.store, self._folder, self._shards = store, folder, shards
        self.servers: dict[str, Server] = {}

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers.values():
            dispose(server)

    def make(self, name: str, *flags: str, http: bool = False) -> Server:
        """A host that is not started yet."""
        address = f"127.0.0.1:{quiet_port()}"
        server = Server(
            self._folder / name,
            *("--store", self.store, "--cluster", "test", "--cluster-host", name),
            *("--cluster-address", address, *flags),
            shards=self._shards,
            port=quiet_port(),
            http_port=quiet_port() if http else 0,
        )
        self.servers[name] = server
        return server

    def start(self, *names: str, flags: tuple[str, ...] = (), http: bool = False) -> list[Server]:
        """Start hosts; they are ready, and each has its share of the shards."""
        made = [self.make(name, *flags, http=http) for name in names]
        for server in made:
            server.launch()
        for server in made:
            server.until_ready()
        self.until_shared(*self.servers)
        return made

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(conninfo(self.store), autocommit=True) as connection:
            cursor = connection.execute(sql, values or None)  # type: ignore[call-overload]
            return list(cursor.fetchall()) if cursor.description else []

    def queue_of(self, name: str) -> str:
        """A new queue whose shard a host owns now."""
        owners = self.owners()
        return next(
            queue
            for number in count()
            if (queue := f"{name}-{number}-{secrets.token_hex(3)}")
            and owners[slot_of_queue(queue) & (self._shards - 1)] == name
        )

    def owners(self) -> list[str]:
        """The name of the host that owns each shard; "" for one that nobody does."""
        return [name for _, name in self.ask(OWNERS)]

    def are_shared(self, *names: str) -> bool:
        """Whether these hosts own all shards, none of them two more than another."""
        load = Counter(self.owners())
        missing = set(load) - set(names)
        return not missing and max(load.values()) - min(load[name] for name in names) < 2

    def until_shared(self, *names: str) -> None:
        """Wait until these hosts own all shards, none of them two more than another, and copies are made."""

        wait_until(lambda: self.are_shared(*names), f"{names} share the shards")
        if len(names) > 1:
            wait_until(self.are_copies_made, "each shard has a copy")

    def follows(self, name: str) -> int:
        """How many shards a host follows."""
        query = """
            select count(*) from bunqueue.followers join bunqueue.hosts on hosts.id = followers.host
            where hosts.name = %s
        """
        return int(self.ask(query, name)[0][0])

    def are_copies_made(self) -> bool:
        query = """
            select count(distinct shards.id) from bunqueue.shards join bunqueue.followers
            on followers.shard = shards.id and followers.seq + 100 >= shards.position
        """
        return bool(self.ask(query)[0][0] == self._shards)
