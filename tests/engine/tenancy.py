"""All queues of a shard under test are in one namespace without bounds, so each test checks its counts."""

from __future__ import annotations

from bunqueue.model.quota import NO_QUOTA
from shardproc.engine.memory.tenants import Tenant, Tenants
from shardproc.engine.state import State


class OneTenant(Tenants):
    """Whatever the names of the queues are."""

    def __init__(self) -> None:
        super().__init__()
        self.tenant = Tenant("all/", NO_QUOTA)

    def of(self, queue: str) -> Tenant:
        return self.tenant


def one_tenant(state: State) -> None:
    """For ``prepare`` of a shard."""
    state.tenants = OneTenant()


def check_counts(state: State) -> None:
    """What is counted as it comes and goes is what is there, if the shard was prepared as above."""
    if isinstance(state.tenants, OneTenant):
        tenant, queues = state.tenants.tenant, state.queues.values()
        assert tenant.jobs == sum(len(queue.jobs) + len(queue.late) for queue in queues) == len(state.jobs)
        assert tenant.queues == len(queues)
