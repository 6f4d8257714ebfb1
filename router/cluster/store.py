"""What the hosts of a cluster exchange through the store: heartbeats, and which shards each should own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bunqueue.server.links import host_protocol as host_link
from bunqueue.store.database import SESSION, StoreError, StoreNotReady, StoreUnavailable, conninfo, shown
from bunqueue.version import __version__

from ..core.cluster_view import HostRow, ShardRow, View
from ..core.placement import Change
from ..errors import BAD_USAGE, StartError

MAX_HOSTS = 16
_LOCK = 0x62756E72  # of an advisory lock: one host at a time changes the placement

_HOSTS = """
    select id, name, number, link, certificate, clients, version, schema, lower(link_versions),
           upper(link_versions) - 1, beat, draining
    from bunqueue.hosts order by name
"""
_SHARDS = """
    select id, home, owner, epoch, beat, position, schema, wanted, snapshot_seq
    from bunqueue.shards order by id
"""
_FOLLOWERS = "select shard, host, seq from bunqueue.followers"


def _shard(row: tuple[Any, ...], followers: Mapping[int, Mapping[str, int]]) -> ShardRow:
    number, home, token, epoch, beat, position, schema, wanted, snapshot = row
    copies = followers.get(number, {})
    return ShardRow(number, home, token, epoch, beat, position, schema, wanted, snapshot, copies)


class ClusterStore:
    """One host's connection to the store. Every call may raise StoreError."""

    def __init__(self, url: str, host: HostRow) -> None:
        self._url = url
        self._host = host
        self._connection: Any = None
        self.lock = asyncio.Lock()
        """Held during each request: there is one connection, and it may be in a transaction."""
        self.secret = ""

    @property
    def me(self) -> HostRow:
        return self._host

    def advertise(self, port: int) -> None:
        """Set the port that other hosts dial, if the configured one was 0 (any free port)."""
        address, _, asked = self._host.link.rpartition(":")
        if asked == "0":
            self._host = replace(self._host, link=f"{address}:{port}")

    async def join(self, cluster: str) -> None:
        """Register this host. StartError if it may not join the cluster."""
        async with _Asking(self) as connection, connection.transaction():
            await connection.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
            await self._check_name(connection, cluster)
            for other in [HostRow(*row) for row in await _rows(connection, _HOSTS)]:
                self._check_versions(other)
            rows = await _rows(connection, "select id, name, number from bunqueue.hosts")
            taken = {number for number_id, _, number in rows if number_id != self._host.id}
            for other, name, _ in rows:
                if name == self._host.name and other != self._host.id:
                    raise StartError(
                        f"cluster_host: another data folder ({other}) is the host {name!r} already: give "
                        "another name, or remove that one with bunqueue cluster forget"
                    )
            free = [number for number in range(1, MAX_HOSTS + 1) if number not in taken]
            if not free:
                raise StartError(f"cluster: {MAX_HOSTS} hosts are in it already, which is the most")
            known = {other: number for other, _, number in rows}
            self._host = replace(self._host, number=known.get(self._host.id, free[0]))
            await connection.execute(_ENTER, self._values())
            self.secret = (await _rows(connection, "select secret from bunqueue.store"))[0][0]

    async def _check_name(self, connection: Any, cluster: str) -> None:
        ((there,),) = await _rows(connection, "select cluster from bunqueue.store")
        if there and there != cluster:
            raise StartError(f"cluster: the store is that of the cluster {there!r}, not of {cluster!r}")
        await connection.execute("update bunqueue.store set cluster = %s where cluster = ''", (cluster,))

    def _check_versions(self, other: HostRow) -> None:
        """StartError unless this host and the other one have a protocol version in common."""
        if other.id != self._host.id and host_link.agree(other.oldest, other.newest) is None:
            oldest, newest = host_link.VERSIONS
            raise StartError(
                f"cluster: the host {other.name!r} runs {other.version} and speaks {other.oldest} to "
                f"{other.newest} of the protocol between hosts; this one runs {__version__} and speaks "
                f"{oldest} to {newest}: install a version between, or remove a host that will not come back "
                "with bunqueue cluster forget",
                BAD_USAGE,
            )

    def _values(self) -> dict[str, object]:
        host = self._host
        return {
            "id": host.id,
            "name": host.name,
            "number": host.number,
            "link": host.link,
            "certificate": host.certificate,
            "clients": host.clients,
            "version": __version__,
            "schema": host.schema,
            "oldest": host_link.VERSIONS[0],
            "newest": host_link.VERSIONS[1] + 1,
        }

    async def read(self) -> View:
        """Write this host's heartbeat, and read the others'."""
        async with _Asking(self) as connection:
            beat = "update bunqueue.hosts set beat = beat + 1 where id = %s"
            cursor = await connection.execute(beat, (self._host.id,))
            if cursor.rowcount != 1:
                raise StoreNotReady("this host was removed from the cluster")
            hosts = [HostRow(*row) for row in await _rows(connection, _HOSTS)]
            followers: dict[int, dict[str, int]] = {}
            for shard, host, seq in await _rows(connection, _FOLLOWERS):
                followers.setdefault(shard, {})[host] = seq
            shards = [_shard(row, followers) for row in await _rows(connection, _SHARDS)]
            return View(hosts, shards)

    async def change(self, changes: Sequence[Change], before: View) -> bool:
        """Write changes of the placement, unless another host is doing so now, or it has changed since."""
        homes = {shard.id: shard.home for shard in before.shards}
        async with _Asking(self) as connection, connection.transaction():
            if not (await _rows(connection, "select pg_try_advisory_xact_lock(%s)", _LOCK))[0][0]:
                return False
            for change in changes:
                if change.home is not None:
                    await connection.execute(
                        "update bunqueue.shards set home = %s where id = %s and home = %s",
                        (change.home, change.shard, homes[change.shard]),
                    )
                for host in change.follow:
                    await connection.execute(
                        "insert into bunqueue.followers (shard, host, seq) select %s, id, 0 from "
                        "bunqueue.hosts where id = %s on conflict do nothing",
                        (change.shard, host),
                    )
                for host in change.unfollow:
                    await connection.execute(
                        "delete from bunqueue.followers where shard = %s and host = %s", (change.shard, host)
                    )
            return True

    async def owns(self, shard: int, others: Sequence[str]) -> None:
        """This host owns a shard: make it the shard's home, unless the home is one of ``others``, the live
        hosts to which the shard may be moving."""
        async with _Asking(self) as connection:
            await connection.execute(
                "update bunqueue.shards set home = %s where id = %s and home <> all(%s)",
                (self._host.id, shard, [self._host.id, *others]),
            )
            await connection.execute(
                "delete from bunqueue.followers where shard = %s and host = %s", (shard, self._host.id)
            )

    async def leave(self) -> None:
        """This host shuts down cleanly."""
        async with _Asking(self) as connection:
            await connection.execute("delete from bunqueue.hosts where id = %s", (self._host.id,))

    # -- commands of operators

    async def drain(self, host: str, *, draining: bool) -> bool:
        """Have all shards leave a host, or let it have some again; returns whether the host exists."""
        async with _Asking(self) as connection:
            cursor = await connection.execute(
                "update bunqueue.hosts set draining = %s where id = %s", (draining, host)
            )
            return bool(cursor.rowcount == 1)

    async def want(self, shard: int, host: str) -> None:
        """Have a shard move to a host and stay there; "": leave its place to balancing."""
        async with _Asking(self) as connection:
            await connection.execute("update bunqueue.shards set wanted = %s where id = %s", (host, shard))

    async def forget(self, host: str) -> bool:
        """Remove a host that will not come back; returns whether it was there."""
        async with _Asking(self) as connection:
            await connection.execute("update bunqueue.shards set wanted = '' where wanted = %s", (host,))
            cursor = await connection.execute("delete from bunqueue.hosts where id = %s", (host,))
            return bool(cursor.rowcount == 1)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def connected(self) -> Any:
        import psycopg

        if self._connection is None or self._connection.closed:
            self._connection = await psycopg.AsyncConnection.connect(conninfo(self._url), autocommit=True)
            await self._connection.execute(SESSION)
        return self._connection

    async def broken(self) -> None:
        with_connection, self._connection = self._connection, None
        if with_connection is not None:
            await with_connection.close()

    @property
    def shown(self) -> str:
        return shown(self._url)


class _Asking:
    """Gives access to the connection; raises its errors as StoreError."""

    def __init__(self, store: ClusterStore) -> None:
        self._store = store

    async def __aenter__(self) -> Any:
        import psycopg

        await self._store.lock.acquire()
        try:
            return await self._store.connected()
        except BaseException as error:
            self._store.lock.release()
            if isinstance(error, psycopg.Error):
                raise self._unavailable(error) from error
            raise

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        import psycopg

        try:
            if error is not None and not isinstance(error, StartError | StoreError):
                await self._store.broken()
        finally:
            self._store.lock.release()
        if isinstance(error, psycopg.Error):
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"the store at {self._store.shown} does not answer: {' '.join(str(error).split())}"
        )


async def _rows(connection: Any, query: str, *values: object) -> list[tuple[Any, ...]]:
    return list(await (await connection.execute(query, values or None)).fetchall())


_ENTER = """
    insert into bunqueue.hosts (id, name, number, link, certificate, clients, version, schema, link_versions)
    values (%(id)s, %(name)s, %(number)s, %(link)s, %(certificate)s, %(clients)s, %(version)s, %(schema)s,
            int4range(%(oldest)s, %(newest)s))
    on conflict (id) do update set name = excluded.name, link = excluded.link,
        certificate = excluded.certificate, clients = excluded.clients, version = excluded.version,
        schema = excluded.schema, link_versions = excluded.link_versions, beat = hosts.beat + 1,
        draining = false
"""
