"""Makes metrics in the form that the Prometheus library writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client.core import HistogramMetricFamily, Metric

from bunqueue.protocol.commands.monitoring import Times


class Snapshot:
    """Replaces a registry in calls of `generate_latest`."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def family_of(
    kind: type[Metric], name: str, text: str, labels: Sequence[str] = (), value: float | None = None
) -> Any:
    """A metric of the server, from its name without "bunqueue_" and its type."""
    make: Any = kind
    return make(f"bunqueue_{name}", text, labels=labels or None, value=value)


def histogram_of(name: str, text: str, labels: Sequence[str] = ()) -> Any:
    """A histogram, to which `add_metric` adds `buckets_of` times."""
    return HistogramMetricFamily(f"bunqueue_{name}", text, labels=list(labels))


def buckets_of(times: Sequence[Times], every: int = 1) -> tuple[list[tuple[str, float]], float]:
    """The buckets of the sum of some times, and their sum in seconds. The bounds are 1, 2, 4, ... ms,
    or only one of so many."""
    counts = list(accumulate(map(sum, zip(*(each.counts for each in times), strict=True))))
    last = len(counts) - 1
    buckets = [(str(2**step / 1000), float(counts[step])) for step in range(0, last, every)]
    return [*buckets, ("+Inf", float(counts[last]))], sum(each.sum_ms for each in times) / 1000
