"""The process of a secondary router: started by the first one, and ends with it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
from contextlib import suppress

import msgspec

from bunqueue import process_stats as vitals
from bunqueue.logs import configure_logging, get_logger
from bunqueue.server.audit.trail import Trail
from bunqueue.server.host.descriptors import raise_file_limit, share
from bunqueue.server.host.process_arguments import name_process
from bunqueue.server.identities.watch import IdentitiesWatch
from bunqueue.server.links import router_protocol as router_link
from bunqueue.server.links import shard_protocol as link_protocol
from bunqueue.server.settings.settings import Settings

from ..clients.hub import SWEEP_S, Hub
from ..clients.listener import TcpListener
from ..clients.own_figures import complete_answers
from ..clients.tls import server_context
from ..event_loop import calm_collector, event_loop
from ..secondary.first_router import FirstRouter
from ..sockets import BoundSockets
from .link import connected
from .shared_figures import SharedFigures

NOTE_S = 1.0  # between two reports of its resource use
STOP_S = 12.0  # for the shards to answer what they were asked
CLOSE_S = 2.0  # for clients to take their last replies

_log = get_logger("router")


def main() -> int:
    """Run it; returns the exit status."""
    given = sys.stdin.buffer.read()
    try:
        start = msgspec.json.decode(given, type=router_link.Start)
    except msgspec.DecodeError:
        return 1  # the first router was killed before it had sent everything
    name_process(f"bunqueue router {start.number}")
    settings = Settings.from_json(start.settings)
    os.umask(0o077)
    configure_logging(settings.log_level, settings.log_format, router=start.number)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the first router decides
        signal.signal(number, signal.SIG_IGN)
    return event_loop()(_run(start, settings))


async def _run(start: router_link.Start, settings: Settings) -> int:
    return await SecondaryRouter(start, settings).run()


class SecondaryRouter:
    """Everything that runs in a secondary router."""

    def __init__(self, start: router_link.Start, settings: Settings) -> None:
        self._start, self._settings = start, settings
        hub = self._hub = Hub(settings)
        complete_answers(hub)
        hub.limits.trail = Trail(settings, f"router-{start.number}")
        self._table = SharedFigures(start.table, settings.routers, start.number)
        self._first = first = FirstRouter(hub, self._table)
        hub.one_of(first, settings.routers, start.number, start.origin, start.incarnation)
        self._listener = TcpListener(hub, BoundSockets.given(start.sockets), settings)

    async def run(self) -> int:
        """Run until the first router stops it, or is gone."""
        settings, hub, first = self._settings, self._hub, self._first
        found = share(raise_file_limit(), settings.max_connections, shards=settings.shards)
        hub.limits.connections, hub.limits.lingering = found.clients, found.lingering
        tls = server_context(settings)
        await connected(first, socket.socket(fileno=self._start.link))
        hub.unauthenticated.logs = False
        hub.unauthenticated.on_wrong_token.append(self._wrong_token)
        self._identities = IdentitiesWatch(settings, hub.limits.directory, hub.identities_changed, logs=False)
        first.renew = self._read_files_again
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(work) for work in (self._sweep(), self._note(), hub.health.lag.measure())]
        beginning = loop.create_task(first.begun.wait())
        stopping = loop.create_task(first.stopped.wait())
        await asyncio.wait([beginning, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not first.stopped.is_set():
            await self._listener.start(tls)
            self._identities.start()
            gc.collect()
            calm_collector()
            first.send(router_link.BEGUN)
            await stopping
        beginning.cancel()
        await self._stop()
        for task in tasks:
            task.cancel()
        return 0

    def _read_files_again(self) -> None:
        self._identities.reload()
        if self._settings.tls_cert:
            self._listener.renew_certificate()

    def _wrong_token(self, address: str, told_by: object) -> None:
        if told_by is None:
            self._first.send(router_link.WRONG_TOKEN, address.encode())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._hub.sweep()
            self._listener.sweep()

    async def _note(self) -> None:
        """Say what this process costs."""
        while True:
            self._table.note(vitals.memory(), vitals.cpu_s(), self._hub.health.lag.longest())
            await asyncio.sleep(NOTE_S)

    async def _stop(self) -> None:
        """Stop accepting clients and commands, and deliver the answers."""
        hub, loop = self._hub, asyncio.get_running_loop()
        self._identities.stop()
        self._listener.close()
        hub.clients.draining = True
        for client in hub.clients.values():
            client.stop_reading()
        for link in hub.shards.served_here:
            link.control(link_protocol.DRAIN, hub.clients.base)
        end = loop.time() + STOP_S
        while hub.shards.served_here and loop.time() < end:
            if self._first.closed.done():
                break  # no answer will come
            await asyncio.sleep(0.02)
        for client in list(hub.clients.values()):
            client.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(hub.emptied(), CLOSE_S)
