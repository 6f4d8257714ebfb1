"""All webhooks: a courier for each that is switched on.

In a cluster, one gateway of all hosts has couriers.  The first shard decides which one (`GetDeliveries`).  A
gateway that does not get an answer in time has no couriers.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

import msgspec
from msgspec import to_builtins
from msgspec.msgpack import Decoder

from bunqueue.gateway.events.log_reader import LogReader
from bunqueue.gateway.http.transcode import read_packed
from bunqueue.gateway.router_client.backend import Backend, Unanswered
from bunqueue.gateway.router_client.connection import RouterDisconnected
from bunqueue.logs import get_logger
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands.webhooks import Delivery, RecordDelivery, RecordTrial, Trial, WantedTrial

from .delivery import WebhookDelivery
from .messages import TEST, headers_of, trial_body
from .sender import NotSent, post
from .shared_event_logs import Logs

POLL_S = 1.0  # between two reads of the list of webhooks
ANSWER_S = 1.5  # in a cluster, for the first shard to answer: couriers end before others may start
STOP_S = 3.0  # to finish deliveries, and record the last ones

_log = get_logger("webhooks")


class _Webhooks(msgspec.Struct):
    ok: bool
    webhooks: list[Delivery] = []
    trials: list[WantedTrial] = []
    delivers: bool = True


_decode = Decoder(_Webhooks).decode


class Deliverer:
    """Runs the couriers."""

    def __init__(self, backend: Backend, *, shards: int, anywhere: bool, alone: bool = True) -> None:
        """``alone``: no other gateway may deliver the same webhooks."""
        self._name = "" if alone else secrets.token_hex(8)
        self._delivers = False
        self._backend = backend
        self._logs = Logs(LogReader(backend), shards)
        self._shards = shards
        self._anywhere = anywhere
        self._couriers: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = set()  # webhooks with a courier that was asked to end
        self._polling: asyncio.Task[None] | None = None
        self._trials: set[asyncio.Task[str | None]] = set()

    def start(self) -> None:
        """Deliver from now on; safe to call twice."""
        if self._polling is None:
            self._polling = asyncio.get_running_loop().create_task(self._poll())

    async def stop(self) -> None:
        """Stop delivering.  Returns when the positions are stored.  Safe to call twice."""
        polling, self._polling = self._polling, None
        tasks = [*self._couriers.values(), *self._trials, *([polling] if polling else [])]
        self._couriers.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S)

    async def _webhooks(self) -> _Webhooks:
        """The webhooks and pending tests.  Raises Unanswered, RouterGone or TimeoutError."""
        fields = {"deliverer": self._name, "delivers": self._delivers} if self._name else {}
        async with asyncio.timeout(ANSWER_S if self._name else None):
            found = _decode(await self._backend.call("GetDeliveries", fields))
        if not found.ok:  # the shard is unavailable
            raise Unanswered
        return found

    async def _poll(self) -> None:
        while True:
            self._sweep()
            try:
                found = await self._webhooks()
                self._delivers = found.delivers
                self._staff(found.webhooks)
                self._try(found)
            except (RouterDisconnected, Unanswered, TimeoutError, msgspec.MsgspecError) as error:
                _log.debug("the webhooks cannot be read", error=str(error))
                if self._name:  # another gateway may begin soon
                    self._delivers = False
                    self._staff([])
            await asyncio.sleep(POLL_S)

    def _sweep(self) -> None:
        """Forget couriers that have ended.  Called before the webhooks are read, so these include their
        results."""
        for webhook_id, task in list(self._couriers.items()):
            if task.done():
                del self._couriers[webhook_id]
                self._ending.discard(webhook_id)
                if not task.cancelled() and (error := task.exception()) is not None:
                    _log.error("a webhook is not delivered at present", webhook=webhook_id, error=repr(error))

    def _staff(self, hooks: list[Delivery]) -> None:
        """Run a courier for each webhook that is switched on, and for no other."""
        wanted = {hook.id: hook for hook in hooks if hook.enabled}
        for webhook_id in self._couriers.keys() - wanted.keys() - self._ending:
            self._ending.add(webhook_id)
            self._couriers[webhook_id].cancel()
        for webhook_id, hook in wanted.items():
            if webhook_id not in self._couriers:  # after a switch off and on, the old one ends first
                courier = WebhookDelivery(
                    hook, self._logs, self._record, shards=self._shards, anywhere=self._anywhere
                )
                self._couriers[webhook_id] = asyncio.get_running_loop().create_task(courier.run())

    async def _record(self, news: RecordDelivery) -> bool:
        """Store the record.  Returns whether nothing is left to do."""
        code, error = await self._call("RecordDelivery", to_builtins(news))
        if error is not None:  # if the gateway ends now, some of it is delivered again later
            _log.debug("a delivery was not recorded", webhook=news.webhook_id, error=error)
        return error is None or code == Code.WEBHOOK_NOT_FOUND

    def _try(self, found: _Webhooks) -> None:
        """Send the pending test deliveries."""
        hooks = {hook.id: hook for hook in found.webhooks}
        for wanted in found.trials:
            if (hook := hooks.get(wanted.webhook_id)) is not None:
                task = asyncio.get_running_loop().create_task(self._trial(wanted.trial, hook))
                self._trials.add(task)
                task.add_done_callback(self._trials.discard)

    async def _trial(self, number: str, hook: Delivery) -> str | None:
        begun, now_ms = time.monotonic(), int(time.time() * 1000)
        body = trial_body(now_ms)
        headers = headers_of(TEST, f"test-{now_ms}", body, hook.secret, now_ms // 1000)
        status, error = None, None
        try:
            status = await post(hook.url, headers, body, anywhere=self._anywhere)
        except NotSent as problem:
            error = str(problem)
        delivered = status is not None and 200 <= status < 300
        data = Trial(delivered, status, error, round((time.monotonic() - begun) * 1000))
        return (await self._call("RecordTrial", to_builtins(RecordTrial(trial=number, data=data))))[1]

    async def _call(self, command: str, fields: dict[str, Any]) -> tuple[str | None, str | None]:
        """Send a command to the server.  Returns the code and the text of its refusal, if it refuses."""
        try:
            reply = read_packed(await self._backend.call(command, fields))
        except (RouterDisconnected, Unanswered) as error:
            return None, str(error) or "no answer"
        return (None, None) if reply["ok"] else (reply.get("code"), str(reply["error"]))
