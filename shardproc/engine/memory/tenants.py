"""What each namespace has on this shard, and how much it may have.

Queues and jobs are counted as they come and go, whoever adds them; queues outside of namespaces pay only for
reading ``queue.tenant``.  The bounds come from the router, which reads the file of identities.
"""

from __future__ import annotations

from collections.abc import Mapping

from bunqueue.model.names import prefix_of
from bunqueue.model.quota import NO_QUOTA, Excess, Quota
from bunqueue.protocol.quotas import refusal


class Tenant:
    """A namespace on this shard."""

    __slots__ = ("jobs", "prefix", "queues", "quota")

    def __init__(self, prefix: str, quota: Quota) -> None:
        self.prefix, self.quota = prefix, quota
        self.queues = 0
        self.jobs = 0  # that have not ended

    def admit(self, field: str, there: int, more: int = 1) -> None:
        """CommandError if there may not be so many ``more`` of what the bound ``field`` counts."""
        bound: int | None = getattr(self.quota, field)
        if bound is not None and more > 0 and there + more > bound:
            raise refusal(self.prefix[:-1], Excess(field, there, bound))


class Tenants:
    """All namespaces that have, or had, something on this shard."""

    def __init__(self) -> None:
        self._quotas: Mapping[str, Quota] = {}
        self._tenants: dict[str, Tenant] = {}

    def of(self, queue: str) -> Tenant | None:
        """The namespace of a queue, which need not exist; None without one."""
        prefix = prefix_of(queue)
        if not prefix:
            return None
        tenant = self._tenants.get(prefix)
        if tenant is None:
            tenant = self._tenants[prefix] = Tenant(prefix, self._quotas.get(prefix[:-1], NO_QUOTA))
        return tenant

    def change(self, quotas: Mapping[str, Quota]) -> None:
        """Set the bounds of all namespaces, by their names; what is there stays, also beyond them."""
        self._quotas = quotas
        for prefix, tenant in self._tenants.items():
            tenant.quota = quotas.get(prefix[:-1], NO_QUOTA)
