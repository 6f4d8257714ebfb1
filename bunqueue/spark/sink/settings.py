"""The options of a write, checked on the driver before any task runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bunqueue.client.connection.address import endpoint
from bunqueue.client.connection.options import ConnectionOptions, refused, unfit
from bunqueue.client.connection.transport import Endpoint
from bunqueue.client.options import checks

from ..given import lowered, one_of, whole

FORMATS = ("value", "json", "msgpack")
MAX_BATCH = 10_000  # rows in one command; more gains nothing, and other clients of the shard would wait
MAX_IN_FLIGHT = 16  # commands of one task in progress
TIMEOUT_MS = 60_000  # how long to wait for a server that restarts
REFUSED_MS = 10_000  # and for one that never answered

KNOWN = (
    *("batchSize", "badRows", "dataFormat", "host", "inFlight", "name", "port", "queue", "ratePerTask"),
    *("rejectsPath", "summaryPath", "timeout", "token", "url", "writeId"),
)
SPARKS = frozenset({"checkpointlocation"})
"""Spark's own options, which it passes on; in lower case, as Spark does."""


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """One write. Sent to the tasks, so it contains only values that can be pickled."""

    endpoint: Endpoint
    queue: str | None = None
    """For rows without a queue."""
    name: str | None = None
    """The same for the names of jobs."""
    data_format: str = "value"
    """The content of the column `data`: the data itself, a text with JSON, or bytes with MessagePack."""
    batch_size: int = 1000
    in_flight: int = 2
    rate: float | None = None
    """Jobs per second of each task."""
    skip_bad_rows: bool = False
    rejects_path: str | None = None
    summary_path: str | None = None
    write_id: str | None = None
    """An input of ids, in addition to a row's content. None: a value of each write's own."""


def sink_settings(options: Mapping[str, str]) -> SinkSettings:
    """The options of a write. Their names may be in any case. Raises OptionError."""
    if any(name.lower() == "path" for name in options):
        raise unfit("path", "jobs are added to a queue of a server; give queue, and no path to save()")
    given = lowered(
        {name: text for name, text in options.items() if name.lower() not in SPARKS}, KNOWN, "writing"
    )
    for name in ("rejectsPath", "summaryPath"):
        value = given.get(name.lower(), "")
        if "://" in value:
            raise refused(name, value, "is an address; give a path of a disk, or of a mount")
    settings = SinkSettings(
        _endpoint(given),
        queue=checks.queue_name(given["queue"]) if "queue" in given else None,
        name=checks.job_name(given["name"]) if "name" in given else None,
        data_format=one_of(given, "dataFormat", {word: word for word in FORMATS}),
        batch_size=whole(given, "batchSize", 1000, MAX_BATCH),
        in_flight=whole(given, "inFlight", 2, MAX_IN_FLIGHT),
        rate=_rate(given),
        skip_bad_rows=one_of(given, "badRows", {"fail": False, "skip": True}),
        rejects_path=given.get("rejectspath"),
        summary_path=given.get("summarypath"),
        write_id=given.get("writeid"),
    )
    if settings.rejects_path is not None and not settings.skip_bad_rows:
        raise unfit("rejectsPath", "bad rows end the write, so there are none to keep; give badRows=skip")
    if settings.rate is not None:  # a batch covers at most a second, so jobs are sent evenly
        return replace(settings, batch_size=min(settings.batch_size, max(1, int(settings.rate))))
    return settings


def _endpoint(given: Mapping[str, str]) -> Endpoint:
    """The server, which the driver's environment may also name."""
    timeout = whole(given, "timeout", TIMEOUT_MS, 86_400_000)
    connection = ConnectionOptions(
        pool_size=MAX_IN_FLIGHT, command_timeout=timeout, refused_timeout=min(timeout, REFUSED_MS)
    )
    return endpoint(
        given.get("host"), given.get("port"), given.get("token"), url=given.get("url"), connection=connection
    )


def _rate(given: Mapping[str, str]) -> float | None:
    text = given.get("ratepertask")
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise refused("ratePerTask", text, "is not allowed; give jobs per second, above 0")
    return value
