"""What each namespace uses of this router, and what its file of identities allows.

All connections of a namespace share one `Usage`, and so do the gateway's requests for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from bunqueue.model.quota import NO_QUOTA, Excess, Quota, Usage
from bunqueue.protocol.codes import Code
from bunqueue.protocol.commands import CommandError

_TEXTS = {
    "connections": "has {value} connections to this router, and may have {bound}: close one first",
    "commands": "has sent {value} commands within this second, and may send {bound}",
    "bytes": "has sent {value} bytes within this second, and may send {bound}",
    "payload": "may send commands of up to {bound} bytes, and this one has {value}: send less at a time",
}


class Quotas:
    """By namespace."""

    def __init__(self, quotas: Mapping[str, Quota]) -> None:
        self._quotas = quotas
        self._usages: dict[str, Usage] = {}

    def of(self, namespace: str) -> Usage:
        """What a namespace uses."""
        usage = self._usages.get(namespace)
        if usage is None:
            usage = self._usages[namespace] = Usage(self._quotas.get(namespace, NO_QUOTA))
        return usage

    def change(self, quotas: Mapping[str, Quota]) -> None:
        """The file says something else now."""
        self._quotas = quotas
        for namespace, usage in self._usages.items():
            usage.quota = quotas.get(namespace, NO_QUOTA)


def refusal(namespace: str, excess: Excess) -> CommandError:
    """Why a command, or a connection, of a namespace is refused."""
    text = f"the namespace {namespace} {_TEXTS[excess.field].format(value=excess.value, bound=excess.bound)}"
    if excess.retry_after is None:
        return CommandError(text, Code.QUOTA, field=excess.field, value=excess.value, bound=excess.bound)
    return CommandError(
        f"{text}: try again in {excess.retry_after} ms",
        Code.QUOTA,
        field=excess.field,
        value=excess.value,
        bound=excess.bound,
        retry_after=excess.retry_after,
    )
