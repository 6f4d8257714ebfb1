"""The router's process: the order in which things start and stop, and the effect of signals."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING

import msgspec

from bunqueue.logs import configure_logging, get_logger
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
from bunqueue.server.host.file_permissions import exposed
from bunqueue.server.host.systemd import notify
from bunqueue.server.settings.settings import Settings, SettingsError
from bunqueue.text import printable

from .clients.hub import SWEEP_S, Hub
from .clients.listener import TcpListener
from .clients.own_figures import complete_answers
from .clients.tls import server_context
from .errors import BAD_USAGE, FAILED, WRONG_FILES, StartError
from .event_loop import calm_collector, event_loop
from .gateway import Gateway
from .processes.launcher import Launcher
from .shards.supervisor import COMMAND, WAIT_USEC, Supervisor
from .sockets import BoundSockets

if TYPE_CHECKING:
    from bunqueue.store.database import Store

SIBLINGS = ("bunqueue", "shardproc")  # generic names: another module of the user's may answer to them
CLOSE_S = 2.0  # for clients to take their last replies
STORE_AGAIN_S = 2.0  # between two tries to reach a store that is unavailable
AGAIN_S = 0.5  # a signal that follows the first one sooner is the same wish: timeout(1) sends two, say

_log = get_logger("router")


def main(arguments: Sequence[str], command: Sequence[str] | None = None) -> int:
    """Run the server; returns the exit status. The settings come as JSON through an inherited pipe."""
    try:
        settings = read_settings(arguments[:2])
        secrets_in = read_secrets_in(arguments[2:])
        check_siblings()
        os.umask(0o077)  # private, even where the data folder is open to others
        configure_logging(settings.log_level, settings.log_format)
        launcher = Launcher()
        if command is None:
            raise_file_limit()  # forked processes inherit the limit
            launcher.fork(["shardproc.replication.process" if settings.store else "shardproc.process"])
        return run(settings, launcher, command or COMMAND, secrets_in)
    except SettingsError as error:
        return _refuse(str(error), BAD_USAGE)
    except FilesMismatch as error:
        return max(_refuse(line, WRONG_FILES) for line in error.lines)
    except DataFolderError as error:
        return _refuse(str(error), FAILED)
    except StartError as error:
        return _refuse(str(error), error.status)


def run(
    settings: Settings, launcher: Launcher, command: Sequence[str] = COMMAND, secrets_in: str = ""
) -> int:
    """Run the server with these settings until a signal ends it. ``secrets_in``: see `exposed`."""
    if settings.cluster:
        settings = msgspec.structs.replace(settings, shards=store_of(settings).shards)
    return event_loop()(RouterProcess(settings, launcher, command, secrets_in).run())


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
                    _log.error("the store does not replicate", problem=problem.text, cure=problem.cure)
                return store
        except StoreUnavailable as error:
            _log.warning("waits for the store", reason=str(error))
            notify(f"STATUS={error}\nEXTEND_TIMEOUT_USEC={WAIT_USEC}")
            time.sleep(STORE_AGAIN_S)
        except StoreError as error:
            raise StartError(f"store: {error}", BAD_USAGE) from error


def read_settings(arguments: Sequence[str]) -> Settings:
    """The settings from the descriptor that ``--settings-fd N`` names."""
    if len(arguments) != 2 or arguments[0] != "--settings-fd" or not arguments[1].isdecimal():
        raise StartError("the router is started by: bunqueue start", BAD_USAGE)
    try:
        with open(int(arguments[1]), "rb") as pipe:
            return Settings.from_json(pipe.read())
    except OSError as error:
        raise StartError(f"the settings cannot be read: {error.strerror}", BAD_USAGE) from error


def read_secrets_in(arguments: Sequence[str]) -> str:
    """The file that ``--secrets-in FILE`` names; "" without it."""
    if arguments and (len(arguments) != 2 or arguments[0] != "--secrets-in"):
        raise StartError("the router is started by: bunqueue start", BAD_USAGE)
    return arguments[1] if arguments else ""


def check_siblings() -> None:
    """StartError unless the packages we are about to run are those that came with this one."""
    home = Path(__file__).resolve().parents[1]
    for name in SIBLINGS:
        spec = importlib.util.find_spec(name)
        places = list(spec.submodule_search_locations or ()) if spec else []
        if [Path(place).resolve().parent for place in places] != [home]:
            found = (places[0] if places else spec.origin) if spec else "nowhere"
            raise StartError(f"the package {name} is found {found} and not in {home}", BAD_USAGE)


def _refuse(text: str, status: int) -> int:
    print("bunqueue:", printable(" ".join(text.split())), file=sys.stderr)
    return status


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
        self._sweeper: asyncio.Task[None] | None = None
        self._signalled_at: float | None = None
        self._measurer: asyncio.Task[None] | None = None
        self._data: FolderLock | None = None  # its lock

    async def run(self) -> int:
        """Start, serve until a signal comes, stop."""
        loop = asyncio.get_running_loop()
        serving = loop.create_task(self._serve())
        loop.add_signal_handler(signal.SIGHUP, self._renew_certificate)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, serving)
        await asyncio.wait([serving])
        await self._stop()
        with suppress(asyncio.CancelledError):
            serving.result()
        return 0

    async def _serve(self) -> None:
        settings = self._settings
        server_context(settings)  # report its errors before anything else is done
        if not settings.in_memory:
            folder = Path(settings.data_dir)
            self._data = own_data_folder(folder)  # first: of two new servers only one may write
        self._share_files()
        self._sockets.bind(settings.routers - 1)
        self._gateway.bind()
        self._check_door()
        store = await self._store()
        if self._data is not None:  # last: a start that fails must not fix the number of shards
            open_data_folder(folder, settings.shards, store=store)
            for loss in losses_ahead(folder):
                _log.warning("a shard begins empty, as its loss was accepted", shard=loss.shard, at=loss.at)
        self._check_readers()
        if settings.cluster:
            self._be_one_of_several(store)
        await self._supervisor.start()
        await self._hub.hosts.start()
        if settings.routers > 1:
            self._have_siblings()
        await self._hub.siblings.start()
        if self._data is not None:  # before any job is taken
            note_files(Path(settings.data_dir))
        await self._gateway.start(self._supervisor.folder.gateway_socket)
        await self._listener.start(server_context(settings))
        self._sweeper = asyncio.create_task(self._sweep())
        self._measurer = asyncio.create_task(self._hub.health.lag.measure())
        gc.collect()
        calm_collector()
        self._announce()
        await asyncio.Event().wait()

    def _have_siblings(self) -> None:
        """There are to be other routers on this host."""
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
            beat=0,
            draining=False,
        )
        self._hub.hosts = Cluster(self._hub, self._supervisor, self._launcher, settings, row, store)

    @property
    def _is_open(self) -> bool:
        """Whether other machines can reach the server, and need not authenticate."""
        settings = self._settings
        return not (settings.auth_token or settings.tls_client_ca or self._sockets.is_local)

    def _check_door(self) -> None:
        """StartError if the server is open to everybody without `--insecure`."""
        if self._is_open and not self._settings.insecure:
            text = (
                f"--host {self._settings.host}: other machines reach this address, and without a token "
                "they may read and change everything; give --auth-token, --tls-client-ca or --insecure"
            )
            raise StartError(text, BAD_USAGE)

    def _check_readers(self) -> None:
        """Warn of files that other users of the machine can read."""
        self._hub.health.exposed = exposed(self._settings, self._secrets_in)
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
        with suppress(OSError):  # standard output is closed
            print(f"bunqueue ready {where} pid={os.getpid()}", flush=True)
        notify("READY=1")
        _log.info("ready", tcp=address, http=http, shards=settings.shards, tls=bool(settings.tls_cert))
        if self._is_open:
            _log.warning("anyone who reaches this address is let in; set --auth-token", tcp=address)

    def _renew_certificate(self) -> None:
        """SIGHUP: the files are new. If they are invalid, the old certificate stays in use."""
        if self._sweeper is None:
            return  # the start reads them
        if not self._settings.tls_cert:
            _log.info("SIGHUP renews the TLS certificate, and there is none: nothing was changed")
        elif self._listener.renew_certificate():
            self._gateway.renew_certificate()
            self._hub.siblings.renew_certificate()
            _log.info("the TLS certificate is renewed", certificate=self._settings.tls_cert)

    async def _stop(self) -> None:
        """Take nothing new, let the shards finish what they have, deliver the answers, and end."""
        hub = self._hub
        served = self._sweeper is not None  # else there is only the error to report
        if served:
            _log.info("stopping", connections=len(hub.clients))
        notify("STOPPING=1")
        if served:
            await hub.hosts.withdraw()
        self._listener.close()
        await self._gateway.stop()  # first, while there is somebody to answer what it still asks
        hub.clients.draining = True
        for client in hub.clients.values():
            client.stop_reading()
        hub.siblings.stop_reading()
        await self._supervisor.stop()
        await hub.siblings.stop()
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
            if could_accept is not (could_accept := files_left()) and not could_accept:
                _log.error("no file can be opened any more, new clients are not heard; raise ulimit -n")

    def _on_signal(self, serving: asyncio.Task[None]) -> None:
        """The first signal stops the server cleanly; a second one ends it at once."""
        now = asyncio.get_running_loop().time()
        if self._signalled_at is None:
            self._signalled_at = now
            serving.cancel()
        elif now - self._signalled_at > AGAIN_S:
            self._gateway.kill()
            self._hub.siblings.kill()
            self._supervisor.kill()
            os._exit(FAILED)
