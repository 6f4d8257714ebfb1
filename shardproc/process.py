"""The process of a shard: connect, open, recover, serve, close."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from bunqueue.logs import configure_logging, get_logger
from bunqueue.model import retention as finished
from bunqueue.model.dead_letters import DlqConfig
from bunqueue.model.names import allow_namespaces
from bunqueue.server.folder.data_folder import DataFolderError, shard_file
from bunqueue.server.host.machine_memory import share_of
from bunqueue.server.host.process_arguments import name_process
from bunqueue.server.links import shard_protocol as link
from bunqueue.server.links.pipe_messages import ShardStart
from bunqueue.server.settings.settings import Settings
from shardproc.disk_messages import locked

from .core import StorageFailed
from .engine.memory.vitals import MB
from .engine.state import State
from .replication.errors import Fenced
from .resilient import ResilientShard
from .routers import Routers
from .server import Server
from .storage.damage import Damage, ShardDamaged
from .storage.database import DISK_ERRORS, DatabaseBusy, DatabaseError, disk_problem
from .storage.event_log import Retention
from .storage.one_thread import without_locks
from .storage.recheck import reading_fails
from .storage.schema import WrongSchema
from .view import View

HOUR_MS = 3_600_000
_log = get_logger("shard")


def main() -> int:
    """Run one shard; returns the exit status."""
    line = sys.stdin.buffer.read()
    try:
        start = msgspec.json.decode(line, type=ShardStart)
    except msgspec.DecodeError:
        if line.endswith(b"}"):
            raise
        return 1  # the router was killed before it had sent everything
    name_process(f"bunqueue shard {start.shard}")
    without_locks()
    settings = Settings.from_json(start.settings)
    os.umask(0o077)  # the jobs are private, even where their folder is open to others
    configure_logging(settings.log_level, settings.log_format, shard=start.shard)
    # The router decides when a shard ends: by DRAIN, or by its own end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(start.socket)
    except OSError as error:
        _log.info("router is gone", error=str(error))
        return 1
    try:
        return _run(start, settings, sock)
    except ConnectionError as error:
        _log.info("router is gone", error=str(error))
        return 1


def _run(start: ShardStart, settings: Settings, sock: socket.socket) -> int:
    """Open the file, serve.  ConnectionError when the router goes before everything is ready."""
    hello = link.ShardHello(start.shard, os.getpid(), start.secret)
    sock.sendall(link.answer(link.CONTROL, link.HELLO, link.encode(hello)))
    if settings.store:
        return _run_replicated(start, settings, sock)
    try:
        shard = _open(start, settings, sock)
    except (ShardDamaged, *DISK_ERRORS) as error:
        if not isinstance(error, ShardDamaged) and disk_problem(error) != "damaged":
            return _refused(start, settings, error, sock)
        if (failed := reading_fails(str(shard_file(Path(settings.data_dir), start.shard)))) is not None:
            return _refused(start, settings, failed, sock)
        damage = Damage(str(shard_file(Path(settings.data_dir), start.shard)))
        damage.tables["its header"] = str(error)
        text = str(error) if isinstance(error, ShardDamaged) else damage.text()
        _log.error("the shard is damaged and does not start", error=text)
        sock.sendall(link.answer(link.CONTROL, link.DAMAGED, text.encode()))
        sock.recv(1)  # the router ends this process once it has read that
        return 1
    except (DatabaseBusy, WrongSchema, DatabaseError, DataFolderError) as error:
        return _refused(start, settings, error, sock)
    return _serve(shard, Server(shard, sock, settings.busy_poll), sock, start)


def _serve(shard: ResilientShard, server: Server, sock: socket.socket, start: ShardStart) -> int:
    """Until the router goes, or wants the end; the exit status."""
    shard.files.goes_on = lambda: sock.sendall(link.answer(link.CONTROL, link.PONG))
    try:
        if start.routers:
            server.share(Routers(start.routers, start.secret, server.connections))
        sock.sendall(link.answer(link.CONTROL, link.READY, shard.epoch.to_bytes(8)))
        server.run()
        if server.draining:
            shard.compact()
            shard.end()
    except ConnectionError:
        raise
    except Fenced as error:
        _log.warning("stopped: the shard has another owner", reason=str(error))
        return 1
    except StorageFailed as error:
        _log.error("stopped, to read the data again", error=str(error))
        _send_reason(sock, f"it ends to read its data anew: {error}")
        return 1
    except Exception as error:
        # Memory may be ahead of the disk, or half changed: none of it may be sent or written. The router
        # starts a new process, which reads what was committed.
        _log.exception("stopped by an error")
        _send_reason(sock, f"stopped by an error, which the log shows whole: {type(error).__name__}: {error}")
        return 1
    finally:
        server.close()
        shard.close()
    return 0


def _run_replicated(start: ShardStart, settings: Settings, sock: socket.socket) -> int:
    """As `_run`, with a log: wait for it, own the shard, have the file hold all of it, serve."""
    # Not needed by those that have no store, where it may not be installed.
    from .replication.replicated_process import LOST, REFUSED, open_shard, server_of

    def report(text: str) -> None:
        sock.sendall(link.answer(link.CONTROL, link.WAITING, text.encode()))

    try:
        shard = open_shard(start, settings, sock, report, _options(start, settings))
        _recover(shard, start, sock)
    except REFUSED as error:
        return _refused(start, settings, error, sock)
    except LOST as error:
        _log.error("stopped before it was ready, to begin again", error=str(error))
        return 1
    return _serve(shard, server_of(shard, sock, start, settings), sock, start)


def _send_reason(sock: socket.socket, text: str) -> None:
    """Send the reason of the end, for the router's log and for `bunqueue doctor`."""
    with suppress(OSError):
        sock.sendall(link.answer(link.CONTROL, link.ENDING, text.encode()))


def _refused(start: ShardStart, settings: Settings, error: Exception, sock: socket.socket) -> int:
    where = shard_file(Path(settings.data_dir), start.shard).name
    _log.error("cannot open the data", file=where, error=str(error))
    _send_reason(sock, f"it cannot open {where}: {error}")
    return link.NEVER if isinstance(error, WrongSchema) else 1


def _open(start: ShardStart, settings: Settings, sock: socket.socket) -> ResilientShard:
    """Open the shard's file and recover, reporting progress to the router."""
    memory = settings.in_memory
    path = ":memory:" if memory else str(shard_file(Path(settings.data_dir), start.shard))
    while True:
        shard: ResilientShard | None = None
        try:
            if start.view:
                shard = View(path, start.view, **_options(start, settings))
            else:
                shard = ResilientShard(path, **_options(start, settings))
            shard.store.damage.serve = settings.damaged_shard == "serve"
            _recover(shard, start, sock)
        except DISK_ERRORS as error:
            if shard is not None:
                shard.close()
            if disk_problem(error) != "locked":
                raise
            sock.sendall(link.answer(link.CONTROL, link.WAITING, locked(path).encode()))
        else:
            return shard


def _options(start: ShardStart, settings: Settings) -> dict[str, Any]:
    """What the settings say of a shard."""

    def prepare(state: State) -> None:
        state.maintenance.retention = finished.Retention(
            settings.completed_max_age * 3600, settings.completed_max_count
        )
        state.maintenance.dead_letters = DlqConfig(
            max_age=settings.dead_letters_max_age * HOUR_MS or None,
            max_entries=settings.dead_letters_max_count,
        )
        state.webhooks_anywhere = settings.webhook_addresses == "any"
        if settings.identities:
            allow_namespaces()

    return {
        "full_sync": settings.sync == "full",
        "shard": start.shard,
        "shards": start.shards,
        "retention": Retention(settings.events_max_age * HOUR_MS, settings.events_max_count),
        "prepare": prepare,
        "wal_limit": settings.wal_limit * MB,
        "memory": share_of(settings.memory_limit, start.shards),
    }


def _recover(shard: ResilientShard, start: ShardStart, sock: socket.socket) -> None:
    """Read the file, and report the progress to the router."""
    begun = time.monotonic()

    def progress(loaded: int, total: int) -> None:
        report = link.encode(link.ShardProgress(loaded, total))
        sock.sendall(link.answer(link.CONTROL, link.PROGRESS, report))
        shard.keep_alive()

    # Recovery makes millions of objects and no garbage.
    gc.disable()
    count = shard.recover(shard.now(), start.epoch, progress)
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 100)
    took = int((time.monotonic() - begun) * 1000)
    _log.info("recovered", jobs=count, took_ms=took)
