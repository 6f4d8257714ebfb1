"""Makes metrics in the form that the Prometheus library writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from prometheus_client.core import Metric


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
