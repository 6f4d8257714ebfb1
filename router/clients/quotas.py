"""What each namespace uses of this router, and what its file of identities allows.

All connections of a namespace share one `Usage`, and so do the gateway's requests for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from bunqueue.model.quota import NO_QUOTA, Quota, Usage


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
