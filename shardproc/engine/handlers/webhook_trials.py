"""TestWebhook: parked until the HTTP gateway, which polls for deliveries continuously, has sent the test."""

from __future__ import annotations

from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError, Data, Ok
from bunqueue.protocol.commands.webhooks import (
    DeliveriesReply,
    GetDeliveries,
    RecordTrial,
    Trial,
    TryWebhook,
    WantedTrial,
)

from ..dispatch import answer_late
from ..memory.parked_trials import ParkedTrial
from ..registry import handles
from ..state import Client, State
from .webhooks import SLOT, delivery, known

LEASE_MS = 3_000  # how long the delivering gateway may be silent; it stops on its own before that
UNAVAILABLE_MS = 10_000  # since the last poll of the gateway, which polls every second
NOBODY = "Webhooks are not delivered at present: the HTTP gateway of the server (--http-port) is not there"
LATE = "it is not known in time what came of it"


@handles(TryWebhook)
def try_webhook(state: State, client: Client, command: TryWebhook) -> None:
    hook = known(state, client, command.webhook_id)
    if state.now - state.trials.asked_at > UNAVAILABLE_MS:
        raise CommandError(NOBODY, Code.WEBHOOKS_UNAVAILABLE)
    trial = ParkedTrial(client, command.req_id, hook.id, command.timeout)
    client.waiters += 1
    state.trials.parked[state.ids.token(SLOT, state.now)] = trial
    state.trials.ends.add(state.now + int(command.timeout), trial)


@handles(GetDeliveries)
def get_deliveries(state: State, client: Client, command: GetDeliveries) -> DeliveriesReply:
    state.trials.asked_at = state.now
    if command.deliverer and not _is_deliverer(state, command):
        return DeliveriesReply(webhooks=[], trials=[], delivers=False)
    return DeliveriesReply(
        webhooks=[delivery(hook) for hook in state.webhooks.values()], trials=_untold(state)
    )


def _is_deliverer(state: State, command: GetDeliveries) -> bool:
    """Whether this gateway is the one that delivers.  A shard that has just started does not know: a gateway
    that was delivering continues, and any other has to wait, because the first may still be delivering."""
    trials = state.trials
    if not trials.deliverer_until and not command.delivers:
        trials.deliverer_until = state.now + LEASE_MS
    if state.now < trials.deliverer_until and command.deliverer != trials.deliverer:
        return False
    trials.deliverer, trials.deliverer_until = command.deliverer, state.now + LEASE_MS
    return True


def _untold(state: State) -> list[WantedTrial]:
    found = []
    for number, trial in state.trials.parked.items():
        if not trial.reported:
            trial.reported = True
            found.append(WantedTrial(number, trial.webhook_id))
    return found


@handles(RecordTrial)
def record_trial(state: State, client: Client, command: RecordTrial) -> Ok:
    trial = state.trials.parked.pop(command.trial, None)
    if trial is not None and not trial.done:
        _answer(state, trial, Data(data=command.data))
    return Ok()


def end_trials(state: State) -> None:
    """Answer the trials that have timed out."""
    while (entry := state.trials.ends.pop_due(state.now)) is not None:
        trial = entry[2]
        if not trial.done:
            _answer(state, trial, Data(data=Trial(False, None, LATE, trial.timeout)))
        state.trials.parked = {number: each for number, each in state.trials.parked.items() if not each.done}


def _answer(state: State, trial: ParkedTrial, reply: Data[Trial]) -> None:
    client = trial.client
    trial.done = True
    client.waiters -= 1
    if not client.closed:
        answer_late(state, client, trial.req_id, reply)
