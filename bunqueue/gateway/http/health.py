"""The state of the server, for people, Kubernetes and Prometheus."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from bunqueue.model.rights import Verb, may, names_of
from bunqueue.protocol.commands import COMMANDS
from bunqueue.server.host.auth_throttle import AuthThrottle

from . import status
from .access import known_of, need
from .commands import CommandEndpoint, answered
from .problems import Problem, answer
from .transcode import write_json
from .unknown_fields import check_names

WRONG = "bunqueue_wrong_tokens_total"
STANDBY = "this server is a standby, which takes no changes"
FRESH_S = 0.2  # clients without a token get a result of up to this age: they may ask as often as they like
EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


class Health:
    """The endpoints /health, /healthz, /ready and /prometheus."""

    def __init__(
        self,
        carrier: CommandEndpoint,
        version: str,
        throttle: AuthThrottle,
        cluster: str,
        *,
        is_standby: bool = False,
    ) -> None:
        """``cluster`` is the name of the host's cluster, "" without one."""
        self._is_standby = is_standby
        self._carrier = carrier
        self._version = version
        self._throttle = throttle
        self._cluster = cluster
        self._since = time.monotonic()
        self._asking = asyncio.Lock()
        self._latest: tuple[float, str | None] = (0.0, None)  # its expiry, and the result

    async def alive(self, request: Request) -> Response:
        """Liveness: this process answers."""
        return PlainTextResponse("OK")

    async def ready(self, request: Request) -> Response:
        """Readiness: every shard answers and can store pushes. A standby cannot."""
        problem = STANDBY if self._is_standby else await self._problem(request)
        if problem is None:
            return answer(write_json({"ok": True, "ready": True}))
        body = {"ok": False, "ready": False, "error": problem}
        return answer(write_json(body), status.UNAVAILABLE)

    async def _problem(self, request: Request) -> str | None:
        """The problem of the server, if there is one. A client that may not read learns only that there is
        one."""
        if _sees(request):
            return await self._found()
        if await self._found_lately() is None:
            return None
        return "not every shard answers and can store everything; a token shows why"

    async def _found_lately(self) -> str | None:
        """The result of `_found`, shared by all clients that ask at the same time, because it costs every
        shard something."""
        async with self._asking:
            until, problem = self._latest
            if time.monotonic() >= until:
                problem = await self._found()
                self._latest = time.monotonic() + FRESH_S, problem
            return problem

    async def _found(self) -> str | None:
        try:
            reply = await self._carrier.carry_out(COMMANDS["StorageStatus"], {})
        except Problem as problem:
            return problem.error
        if not reply["ok"]:
            return str(reply["error"])
        error = reply["data"]["error"]
        return None if error is None else str(error)

    async def health(self, request: Request) -> Response:
        """The overall state. Clients that may read also get numbers."""
        problem = await self._problem(request)
        body: dict[str, Any] = {
            "ok": problem is None,
            "status": "healthy" if problem is None else "degraded",
            "version": self._version,
            "uptime": round(time.monotonic() - self._since, 3),
        } | _rights(request)
        if self._cluster and _sees(request):
            body["cluster"] = self._cluster
        if problem is not None:
            body["error"] = problem
        elif _sees(request):
            body |= await self._numbers()
        return answer(write_json(body), 200 if problem is None else status.UNAVAILABLE)

    async def _numbers(self) -> dict[str, Any]:
        names = ("Stats", "Metrics", "BackupStatus")
        stats, metrics, backups = await asyncio.gather(
            *(self._carrier.carry_out(COMMANDS[name], {}) for name in names)
        )
        if not (stats["ok"] and metrics["ok"] and backups["ok"]):
            return {}
        counts, totals = stats["stats"], metrics["metrics"]
        queues = {name: counts[name] for name in ("waiting", "active", "delayed", "completed", "dlq")}
        memory = {"rss": totals["memoryUsageMb"], "sqlite": totals["sqliteSizeMb"]}
        found = {"queues": queues, "connections": {"tcp": totals["activeConnections"]}, "memory": memory}
        return found | {name: view for name, view in backups["data"].items() if view is not None}

    async def prometheus(self, request: Request) -> Response:
        """All metrics in Prometheus' text format."""
        check_names(request.query_params, ())
        identity = need(request, COMMANDS["Prometheus"].verbs, "Prometheus")
        reply = await self._carrier.carry_out(COMMANDS["Prometheus"], {}, identity=identity)
        if not reply["ok"]:
            return answered(reply)
        # The router counts those over TCP. Samples of one metric must be adjacent.
        if identity.queues:
            return Response(reply["data"]["metrics"], media_type=EXPOSITION)
        own = f'{WRONG}{{transport="http"}} {self._throttle.total:.1f}\n{WRONG}{{'
        return Response(reply["data"]["metrics"].replace(WRONG + "{", own, 1), media_type=EXPOSITION)


def _sees(request: Request) -> bool:
    """Whether the client may learn how the whole server does."""
    grant = known_of(request).grant
    return grant is not None and may(grant.identity, Verb.SEE) and not grant.identity.queues


def _rights(request: Request) -> dict[str, Any]:
    """Who the client is, and what it may do."""
    grant = known_of(request).grant
    if grant is None:
        return {"role": "nobody", "verbs": []}
    identity = grant.identity
    found = {"role": "writer" if identity.changes else "reader", "verbs": names_of(identity.verbs)}
    return {**found, "identity": identity.name} if identity.name else found
