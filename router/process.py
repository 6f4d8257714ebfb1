"""The router's process: the order in which things start and stop, and the effect of signals."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING

import msgspec

from bunqueue.logs import get_logger, json_line, report_error
from bunqueue.server.audit.shipping import Shipping
from bunqueue.server.folder.data_folder import (
    DataFolderError,
    FilesMismatch,
    FolderLock,
    losses_ahead,
    note_files,
    open_data_folder,
    own_data_folder,
    read_manifest,
)
from bunqueue.server.host.descriptors import files_left, raise_file_limit, share
from bunqueue.server.host.file_permissions import exposed, network_problem
from bunqueue.server.host.reach import is_overheard
from bunqueue.server.host.replacing import become, settings_pipe
from bunqueue.server.host.systemd import notify
from bunqueue.server.identities.identity_file import IdentitiesError
from bunqueue.server.identities.last_used import first_end
from bunqueue.server.identities.watch import IdentitiesWatch
from bunqueue.server.settings import SettingsError
from bunqueue.server.settings.settings import Settings

from .backup import Backup
from .clients.hub import SWEEP_S, Hub
from .clients.listener import TcpListener
from .clients.own_figures import complete_answers
from .clients.tls import certificate_end, server_context
from .errors import BAD_USAGE, FAILED, WRONG_FILES, StartError
from .event_loop import calm_collector, event_loop
from .gateway import Gateway
from .processes import fork_server
from .processes.launcher import Launcher
from .shards.supervisor import COMMAND, WAIT_USEC, Supervisor
from .sockets import BoundSockets

if TYPE_CHECKING:
    from bunqueue.store.database import Store

SHIP_S = 2.0  # for the rest of the trail to be shipped
CLOSE_S = 2.0  # for clients to take their last replies
STORE_AGAIN_S = 2.0  # between two tries to reach a store that is unavailable
AGAIN_S = 0.5  # a signal that follows the first one sooner is the same wish: timeout(1) sends two, say

_log = get_logger("router")


def main(
    settings: Settings,
    forks: fork_server.Forks | None,
    secrets_in: str,
    command: Sequence[str] | None = None,
) -> int:
    """Run the server until a signal ends it; returns the exit status. ``secrets_in``: see `exposed`.
    ``command`` starts a shard, if not the usual one."""
    given = settings
    try:
        if settings.cluster:
            settings = msgspec.structs.replace(settings, shards=store_of(settings).shards)
        if settings.follow:
            settings = standby_settings(settings)
        process = RouterProcess(settings, Launcher(forks), command or COMMAND, secrets_in)
        status = event_loop()(process.run())
        if process.ending.restarts:
            become("router", "--settings-fd", str(settings_pipe(given)), "--secrets-in", secrets_in)
        return status
    except SettingsError as error:
        return _refuse(str(error), BAD_USAGE)
    except IdentitiesError as error:
        return _refuse(f"--identities {error}", BAD_USAGE)
    except FilesMismatch as error:
        return max(_refuse(line, WRONG_FILES) for line in error.lines)
    except DataFolderError as error:
        return _refuse(str(error), FAILED)
    except StartError as error:
        return _refuse(str(error), error.status)


def standby_settings(settings: Settings) -> Settings:
    """See `router.standby.resolved`."""
    try:
        from .standby import resolved
    except ImportError as error:
        raise StartError(f"follow: needs {error.name}: pip install 'bunqueue[backup]'", BAD_USAGE) from error
    return resolved(settings)


def store_of(settings: Settings) -> Store:
    """The store's description of itself; waits until it answers. StartError if this server may not use it."""
    # Imported here, as these may not be installed on servers without a store.
    from bunqueue.store.check import problems, standbys
    from bunqueue.store.database import StoreError, StoreUnavailable, connected, usable

    while True:
        try:
            with connected(settings.store) as connection:
                store = usable(connection, None if settings.cluster else settings.shards)
                for problem in [] if store.replicates else problems(standbys(connection)):
                    _log.error("the store does not replicate", problem=problem.text, fix=problem.fix)
                return store
        except StoreUnavailable as error:
            _log.warning("waits for the store", reason=str(error))
            notify(f"STATUS={error}\nEXTEND_TIMEOUT_USEC={WAIT_USEC}")
            time.sleep(STORE_AGAIN_S)
        except StoreError as error:
            raise StartError(f"store: {error}", BAD_USAGE) from error


def _refuse(text: str, status: int) -> int:
    report_error(text)
    return status


class Ending:
    """What ends the server: a signal, another server that has taken over, or its own wish to begin again."""

    def __init__(self) -> None:
        self.serving: asyncio.Task[None] | None = None
        self._signalled_at: float | None = None
        self.error: StartError | None = None
        """Why it must not go on."""
        self.restarts = False
        """Whether it begins again, in the same process, with the settings that were given."""

    def signalled(self) -> bool:
        """End cleanly. Whether this is a second signal, after which nothing is waited for."""
        now = asyncio.get_running_loop().time()
        if self._signalled_at is None:
            self._signalled_at = now
            self._stop()
        return now - self._signalled_at > AGAIN_S

    def restart(self) -> None:
        """End, and begin again."""
        self.restarts = True
        self._stop()

    def passed(self, text: str) -> None:
        """Another server has taken over: nothing may be changed here any more."""
        _log.error("ends, as another server has taken over", reason=text)
        self.error = StartError(text, WRONG_FILES)
        self._stop()

    def _stop(self) -> None:
        if self.serving is not None:
            self.serving.cancel()


class RouterProcess:
    """Everything that runs, in its starting order; it stops in the opposite order."""

    def __init__(
        self, settings: Settings, launcher: Launcher, command: Sequence[str] = COMMAND, secrets_in: str = ""
    ) -> None:
        self._settings = settings
        self._launcher = launcher
        self._secrets_in = secrets_in
        self._hub = Hub(settings)
        complete_answers(self._hub)
        self._supervisor = Supervisor(self._hub, settings, launcher, command)
        self._sockets = BoundSockets(settings.host, settings.tcp_port, "--tcp-port")
        self._listener = TcpListener(self._hub, self._sockets, settings)
        self._gateway = Gateway(self._hub, settings, launcher)
        self._backup = Backup(self._hub, settings, launcher)
        self._shipping = Shipping(settings)
        self._sweeper: asyncio.Task[None] | None = None
        self._measurer: asyncio.Task[None] | None = None
        self._identities: IdentitiesWatch | None = None
        self._data: FolderLock | None = None  # its lock
        self.ending = Ending()

    async def run(self) -> int:
        """Start, serve until a signal comes, stop."""
        loop = asyncio.get_running_loop()
        serving = self.ending.serving = loop.create_task(self._serve())
        loop.add_signal_handler(signal.SIGHUP, self._read_files_again)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        await asyncio.wait([serving])
        await self._stop()
        with suppress(asyncio.CancelledError):
            serving.result()
        if self.ending.error is not None:
            raise self.ending.error
        return 0

    async def _serve(self) -> None:
        settings = self._settings
        server_context(settings)  # report its errors before anything else is done
        self._backup.check()
        if not settings.in_memory:
            folder = Path(settings.data_dir)
            self._data = own_data_folder(folder)  # first: of two new servers only one may write
        self._share_files()
        self._sockets.bind(settings.routers - 1)
        self._gateway.bind()
        self._check_door()
        store = await self._store()
        if settings.follow:
            self._follow()
        elif self._data is not None:  # last: a start that fails must not fix the number of shards
            open_data_folder(folder, settings.shards, store=store)
            for loss in losses_ahead(folder):
                _log.warning("a shard begins empty, as its loss was accepted", shard=loss.shard, at=loss.at)
        await self._backup.admit()
        self._check_readers()
        if settings.cluster:
            self._be_one_of_several(store)
        await self._supervisor.start()
        await self._hub.hosts.start()
        if settings.routers > 1:
            self._have_siblings()
        await self._hub.siblings.start()
        if self._data is not None and not settings.follow:  # before any job is taken
            note_files(Path(settings.data_dir))
        self._backup.start(self._sockets.known_as, self.ending.passed)
        self._shipping.start()
        self._hub.health.certificate_ends = certificate_end(settings)
        await self._listener.start(server_context(settings))
        self._sweeper = asyncio.create_task(self._sweep())
        self._measurer = asyncio.create_task(self._hub.health.lag.measure())
        await self._gateway.start(self._supervisor.folder.gateway_socket)  # last: it loads for long
        self._watch_identities()
        gc.collect()
        calm_collector()
        self._announce()
        await asyncio.Event().wait()

    def _follow(self) -> None:
        """This server is the standby of another one."""
        from .standby import Standby

        hub, settings = self._hub, self._settings
        hub.hosts = Standby(hub, self._supervisor, self._launcher, settings, self.ending.restart)

    def _watch_identities(self) -> None:
        hub = self._hub
        self._identities = watch = IdentitiesWatch(
            self._settings, hub.limits.directory, hub.identities_changed, logs=True
        )
        watch.start()

    def _have_siblings(self) -> None:
        """There will be other routers on this host."""
        from .secondary.supervisor import SecondaryRouters

        hub, settings, folder = self._hub, self._settings, self._supervisor.folder
        others = self._sockets.others
        siblings = SecondaryRouters(hub, settings, self._listener, others, folder, self._launcher)
        hub.one_of(siblings, settings.routers, 0, hub.clients.origin)

    async def _store(self) -> str:
        """The id of the store, "" without one; waits until it answers. StartError if it may not be used."""
        if not self._settings.store:
            return ""
        return (await asyncio.to_thread(store_of, self._settings)).id

    def _be_one_of_several(self, store: str) -> None:
        """This host is one of a cluster."""
        settings = self._settings
        from bunqueue.server.folder.shard_file import SCHEMA

        from .cluster.cluster import Cluster
        from .core.cluster_view import HostRow

        row = HostRow(
            id=read_manifest(Path(settings.data_dir)).id,
            name=settings.cluster_host or gethostname(),
            number=0,
            link=settings.cluster_address,
            certificate="",
            clients=self._sockets.address,
            version="",
            schema=SCHEMA,
            oldest=0,
            newest=0,
            heartbeat=0,
            draining=False,
        )
        self._hub.hosts = Cluster(self._hub, self._supervisor, self._launcher, settings, row, store)

    @property
    def _is_open(self) -> bool:
        """Whether other machines can reach the server, and need not authenticate."""
        settings = self._settings
        named = settings.auth_token or settings.identities
        return not (named or settings.tls_client_ca or self._sockets.is_local)

    def _check_door(self) -> None:
        """StartError if the server is open to everybody without `--insecure`, or takes tokens without TLS and
        without `--plaintext`."""
        if is_overheard(self._settings, self._sockets.sockets) and not self._settings.plaintext:
            text = (
                f"--host {self._settings.host}: other machines reach this address, and without TLS "
                "everybody in between reads their tokens; give --tls-cert and --tls-key, or --plaintext"
            )
            raise StartError(text, BAD_USAGE)
        if self._is_open and not self._settings.insecure:
            text = (
                f"--host {self._settings.host}: other machines reach this address, and without a token "
                "they may read and change everything; give --auth-token, --identities, --tls-client-ca or "
                "--insecure"
            )
            raise StartError(text, BAD_USAGE)

    def _check_readers(self) -> None:
        """Warn of files that other users of the machine can read, and of tokens on the network."""
        found = exposed(self._settings, self._secrets_in)
        if is_overheard(self._settings, self._sockets.sockets):
            found |= network_problem(self._sockets.address)
        self._hub.health.exposed = found
        for problem in self._hub.health.exposed.values():
            _log.warning(problem)

    def _share_files(self) -> None:
        """Limit the number of clients to the available descriptors; log it if that is less than
        configured."""
        settings, files = self._settings, raise_file_limit()
        found = share(files, settings.max_connections, shards=settings.shards, gateway=self._gateway.wanted)
        limits = self._hub.limits
        limits.connections, limits.lingering = found.clients, found.lingering
        if found.clients < settings.max_connections:
            _log.warning(
                "max_connections is lowered to what the limit of open files allows; raise it (ulimit -n)",
                max_connections=found.clients,
                wanted=settings.max_connections,
                open_files=files,
            )

    def _announce(self) -> None:
        """Print the one line on standard output that scripts and people wait for."""
        settings, address = self._settings, self._sockets.address
        http = self._gateway.sockets.address if self._gateway.wanted else None
        web = f" http={http}" if http else ""
        where = f"tcp={address}{web} shards={settings.shards} data={settings.data_dir} sync={settings.sync}"
        out = ",".join(map(str, sorted(self._hub.shards.damaged)))
        where += f" damaged={out}" if out else ""
        line = f"bunqueue ready {where} pid={os.getpid()}"
        with suppress(OSError):  # standard output is closed
            print(json_line(logging.INFO, line) if settings.log_format == "json" else line, flush=True)
        notify("READY=1")
        _log.info("ready", tcp=address, http=http, shards=settings.shards, tls=bool(settings.tls_cert))
        if self._is_open:
            _log.warning("anyone who reaches this address is accepted; set --auth-token", tcp=address)

    def _read_files_again(self) -> None:
        """SIGHUP: the files are new. What is invalid changes nothing."""
        settings = self._settings
        if self._identities is None:
            return  # the start reads them
        if not (settings.tls_cert or settings.identities):
            _log.info("SIGHUP renews the TLS certificate and identities, and there are none: nothing changed")
            return
        if settings.identities:
            self._identities.reload()
        if settings.tls_cert and self._listener.renew_certificate():
            _log.info("the TLS certificate is renewed", certificate=settings.tls_cert)
        self._gateway.read_files_again()
        self._hub.siblings.read_files_again()
        self._hub.health.certificate_ends = certificate_end(settings)

    async def _stop(self) -> None:
        """Take nothing new, let the shards finish what they have, deliver the answers, and end."""
        hub = self._hub
        served = self._sweeper is not None  # else there is only the error to report
        if served:
            _log.info("stopping", connections=len(hub.clients))
        notify("STOPPING=1")
        if served:
            await hub.hosts.withdraw()
        if self._identities is not None:
            self._identities.stop()
        self._listener.close()
        await self._gateway.stop()  # first, while there is somebody to answer what it still asks
        hub.clients.draining = True
        for client in hub.clients.values():
            client.stop_reading()
        hub.siblings.stop_reading()
        await self._supervisor.stop()
        await self._backup.stop()
        await hub.siblings.stop()
        self._shipping.stop(SHIP_S)
        await hub.hosts.stop()
        self._launcher.close()
        for task in (self._sweeper, self._measurer):
            if task is not None:
                task.cancel()
        for client in list(hub.clients.values()):
            client.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(hub.emptied(), CLOSE_S)
        if served:
            _log.info("stopped")

    async def _sweep(self) -> None:
        could_accept = True
        while True:
            await asyncio.sleep(SWEEP_S)
            self._hub.sweep()
            self._listener.sweep()
            if not self._settings.in_memory and self._settings.tls_client_ca:
                ends = await asyncio.to_thread(first_end, self._settings.data_dir, time.time())
                self._hub.health.client_certificate_ends = ends
            if could_accept is not (could_accept := files_left()) and not could_accept:
                _log.error("no file can be opened any more, new clients have to wait; raise ulimit -n")

    def _on_signal(self) -> None:
        """The first signal stops the server cleanly; a second one ends it at once."""
        if self.ending.signalled():
            self._gateway.kill()
            self._backup.kill()
            self._hub.siblings.kill()
            self._supervisor.kill()
            os._exit(FAILED)
