"""The heap of delayed jobs, with lazy deletion: entries that are no longer true are skipped, and dropped
before they are the most."""

from __future__ import annotations

from heapq import heapify

from bunqueue.model.job import DELAYED, Job

from ..state import State

MIN_STALE = 64  # below that clearing a heap costs more than skipping


def forget_delay(state: State) -> None:
    """A job left DELAYED before its time: its entry is stale, and at most half of the heap ever is."""
    state.stale_delays += 1
    if state.stale_delays > MIN_STALE and state.stale_delays * 2 > len(state.delays):
        state.delays[:] = [entry for entry in state.delays if is_delayed(entry)]
        heapify(state.delays)
        state.stale_delays = 0


def is_delayed(entry: tuple[int, int, Job]) -> bool:
    """Whether an entry of ``state.delays`` is still true."""
    run_at, _, job = entry
    return job.state == DELAYED and job.run_at == run_at
