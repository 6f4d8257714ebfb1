"""All webhooks: a courier for each that is switched on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from msgspec import to_builtins
from msgspec.msgpack import Decoder

from bunqueue.gateway.backend import Backend, Unanswered
from bunqueue.gateway.line import RouterGone
from bunqueue.gateway.log_reader import LogReader
from bunqueue.logs import get_logger
from bunqueue.protocol.commands.webhooks import Delivery, RecordDelivery

from .courier import Courier
from .messages import TEST, headers_of, trial_body
from .sender import NotSent, post

LOOK_S = 1.0  # between two looks at which webhooks there are
STOP_S = 3.0  # to see what arrives, and record what was delivered last

_log = get_logger("webhooks")


class _Webhooks(msgspec.Struct):
    ok: bool
    webhooks: list[Delivery] = []


_decode = Decoder(_Webhooks).decode


class Deliverer:
    """Runs the couriers."""

    def __init__(self, backend: Backend, *, shards: int, anywhere: bool) -> None:
        self._backend = backend
        self._reader = LogReader(backend)
        self._shards = shards
        self._anywhere = anywhere
        self._couriers: dict[str, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Deliver from now on; safe to call twice."""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def stop(self) -> None:
        """Deliver no more; returns when how far it came is stored.  Safe to call twice."""
        looking, self._looking = self._looking, None
        tasks = [*self._couriers.values(), *([looking] if looking else [])]
        self._couriers.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)

    async def trial(self, webhook_id: str) -> dict[str, Any] | None:
        """Send a webhook a delivery that means nothing, and say what came of it; None: there is no such
        one.
        """
        hook = next((each for each in await self._webhooks() if each.id == webhook_id), None)
        if hook is None:
            return None
        begun, now_ms = time.monotonic(), int(time.time() * 1000)
        body = trial_body(now_ms)
        headers = headers_of(TEST, f"test-{now_ms}", body, hook.secret, now_ms // 1000)
        found: dict[str, Any] = {"status": None, "error": None}
        try:
            found["status"] = await post(hook.url, headers, body, anywhere=self._anywhere)
        except NotSent as error:
            found["error"] = str(error)
        delivered = found["status"] is not None and 200 <= found["status"] < 300
        return {"delivered": delivered, **found, "durationMs": round((time.monotonic() - begun) * 1000)}

    async def _webhooks(self) -> list[Delivery]:
        return _decode(await self._backend.call("GetDeliveries", {})).webhooks

    async def _look(self) -> None:
        while True:
            try:
                self._staff(await self._webhooks())
            except (RouterGone, Unanswered, msgspec.MsgspecError) as error:
                _log.debug("the webhooks cannot be read", error=str(error))
            await asyncio.sleep(LOOK_S)

    def _staff(self, hooks: list[Delivery]) -> None:
        """See that each webhook that is switched on has a courier, and no other has one."""
        wanted = {hook.id: hook for hook in hooks if hook.enabled}
        for webhook_id, task in list(self._couriers.items()):
            if webhook_id not in wanted or task.done():
                task.cancel()
                del self._couriers[webhook_id]
                if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                    _log.error("a webhook is not delivered at present", webhook=webhook_id, error=repr(error))
        for webhook_id, hook in wanted.items():
            if webhook_id not in self._couriers:
                courier = Courier(
                    hook, self._reader, self._record, shards=self._shards, anywhere=self._anywhere
                )
                self._couriers[webhook_id] = asyncio.get_running_loop().create_task(courier.run())

    async def _record(self, news: RecordDelivery) -> None:
        fields = to_builtins(news)
        fields.pop("cmd", None)
        try:
            await self._backend.call("RecordDelivery", fields)
        except (RouterGone, Unanswered) as error:  # then some of it is delivered again one day
            _log.debug("a delivery was not recorded", webhook=news.webhook_id, error=str(error))
