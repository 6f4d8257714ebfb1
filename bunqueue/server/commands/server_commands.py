"""The commands that no shard answers: Hello, Auth, Ping, those about workers, the end of a subscription.

Both the router of a server and the embedded engine use it. `Connection` covers the differences between them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from msgspec import UNSET, Struct, UnsetType

from bunqueue.model.scope import Scope, read_scope
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import (
    COMMANDS,
    Command,
    CommandError,
    Data,
    ErrorReply,
    Ok,
    Reply,
    Route,
    refused,
)
from bunqueue.protocol.commands.backups import (
    BackupStatus,
    BackupStatusReply,
    BackupStatusView,
    PromoteStandby,
)
from bunqueue.protocol.commands.cluster import (
    ClusterDrain,
    ClusterForget,
    ClusterMove,
    ClusterRebalance,
    ClusterStatus,
)
from bunqueue.protocol.commands.events import UnsubscribeEvents
from bunqueue.protocol.commands.server import ActFor, Auth, Hello, Ping, PingReply, Pong, agreement
from bunqueue.protocol.commands.workers import (
    ControlWorker,
    Heartbeat,
    ListWorkers,
    RegisterWorker,
    UnregisterWorker,
)
from bunqueue.version import __version__

from . import handler_table
from .workers import Workers, seen_by


class Connection(Protocol):
    """The connection that sent a command."""

    @property
    def number(self) -> int:
        """The number of the connection; registrations of workers end with it."""

    @property
    def scope(self) -> Scope | None:
        """To which queues its commands are limited, and what it may not read."""

    def limit_to(self, scope: Scope) -> None:
        """What follows is limited to this."""

    def agree(self, version: int) -> None:
        """Use this protocol version, beginning with the reply."""

    def authenticate(self, token: str) -> bool:
        """Whether the token is accepted."""

    def unsubscribe(self) -> None:
        """Stop receiving events."""

    def born(self, command: RegisterWorker) -> str | None:
        """When the worker's process started; None if that cannot be known."""


C = TypeVar("C", bound=Command)

HANDLERS: dict[type[Struct], Callable[[ServerCommands, Connection, Any], Reply]] = {}


def handles(
    *commands: type[C],
) -> Callable[
    [Callable[[ServerCommands, Connection, C], Reply]], Callable[[ServerCommands, Connection, C], Reply]
]:
    """The method carries out these commands."""

    def enter(
        method: Callable[[ServerCommands, Connection, C], Reply],
    ) -> Callable[[ServerCommands, Connection, C], Reply]:
        for command in commands:
            handler_table.enter(HANDLERS, command, method)
        return method

    return enter


class ServerCommands:
    """Answers the commands of one server, or one embedded engine."""

    def __init__(self, workers: Workers, now: Callable[[], int]) -> None:
        """``now``: the wall clock, epoch ms."""
        self.cluster_status: Callable[[], Reply] = _no_cluster
        self.backup_status: Callable[[], BackupStatusView] = BackupStatusView
        self.workers = workers
        self.router: int | UnsetType = UNSET  # the number of this router, if the host has several
        self.now = now

    def answer(self, connection: Connection, command: Struct) -> Reply:
        """The reply to a command of ``Route.ROUTER``."""
        try:
            return HANDLERS[type(command)](self, connection, command)
        except CommandError as error:
            return refused(error)

    @handles(Hello)
    def _hello(self, connection: Connection, command: Hello) -> Reply:
        reply = agreement(command, __version__)
        connection.agree(reply.protocol_version)
        return reply

    @handles(Auth)
    def _auth(self, connection: Connection, command: Auth) -> Reply:
        if connection.authenticate(command.token):
            return Ok()
        return ErrorReply(error="Invalid token", code=Code.INVALID_TOKEN, field="token")

    @handles(ActFor)
    def _act_for(self, connection: Connection, command: ActFor) -> Reply:
        connection.limit_to(read_scope(command.scope))
        return Ok()

    @handles(Ping)
    def _ping(self, connection: Connection, command: Command) -> Reply:
        # A float, like all times on the wire: some clients cannot read integers beyond 32 bits.
        return PingReply(data=Pong(pong=True, time=float(self.now()), router=self.router))

    @handles(RegisterWorker)
    def _register_worker(self, connection: Connection, command: RegisterWorker) -> Reply:
        born = connection.born(command)
        scope = connection.scope
        if scope is not None and not scope.is_everywhere and not command.queues:
            text = "a worker of an identity for some queues only says on which of them it works"
            bound = ", ".join(scope.identity.queues or ("*",))
            raise CommandError(text, Code.FORBIDDEN, field="queues", bound=bound)
        self.workers.check_seen(command.worker_id, scope)
        if command.worker_id is None and scope is not None:
            command.worker_id = f"{scope.prefix}{uuid.uuid4()}"
        return self.workers.register(connection.number, command, self.now(), born=born)

    @handles(UnregisterWorker)
    def _unregister_worker(self, connection: Connection, command: UnregisterWorker) -> Reply:
        self.workers.check_seen(command.worker_id, connection.scope)
        return self.workers.unregister(command.worker_id)

    @handles(ListWorkers)
    def _list_workers(self, connection: Connection, command: ListWorkers) -> Reply:
        return Data(data=seen_by(connection.scope, self.workers.listing(self.now())))

    @handles(ClusterStatus)
    def _cluster_status(self, connection: Connection, command: Command) -> Reply:
        return self.cluster_status()

    @handles(ClusterDrain, ClusterMove, ClusterRebalance, ClusterForget)
    def _change_cluster(self, connection: Connection, command: Command) -> Reply:
        return _no_cluster()  # a cluster answers these elsewhere, because they take time

    @handles(BackupStatus)
    def _backup_status(self, connection: Connection, command: Command) -> Reply:
        return BackupStatusReply(data=self.backup_status())

    @handles(PromoteStandby)
    def _promote(self, connection: Connection, command: Command) -> Reply:
        raise CommandError(  # a standby answers it elsewhere, because it takes time
            "this server is no standby, so it cannot be promoted: see bunqueue start --follow",
            Code.NO_STANDBY,
        )

    @handles(Heartbeat)
    def _heartbeat(self, connection: Connection, command: Heartbeat) -> Reply:
        self.workers.check_seen(command.id, connection.scope)
        return self.workers.heartbeat(command, self.now())

    @handles(ControlWorker)
    def _control_worker(self, connection: Connection, command: ControlWorker) -> Reply:
        self.workers.check_seen(command.worker_id, connection.scope)
        return self.workers.control(command, self.now())

    @handles(UnsubscribeEvents)
    def _unsubscribe(self, connection: Connection, command: Command) -> Reply:
        connection.unsubscribe()
        return Ok()


def _no_cluster() -> Reply:
    raise CommandError(
        "this server is not a host of a cluster: see bunqueue start --cluster", Code.NO_CLUSTER
    )


_ours = {spec.request for spec in COMMANDS.values() if spec.route is Route.ROUTER}
if missing := _ours - HANDLERS.keys():
    raise TypeError(f"no function handles {missing}")
