"""The options of a write, checked on the driver before any task runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from bunqueue.client.connection.address import endpoint
from bunqueue.client.connection.options import ConnectionOptions, refused, shown, unfit
from bunqueue.client.connection.transport import Endpoint
from bunqueue.client.options import checks
from bunqueue.errors import OptionError
from bunqueue.model.names import hint

FORMATS = ("value", "json", "msgpack")
BAD_ROWS = ("fail", "skip")
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
    given = {name.lower(): text for name, text in options.items() if name.lower() not in SPARKS}
    if "path" in given:
        raise unfit("path", "jobs are added to a queue of a server; give queue, and no path to save()")
    known = {name.lower(): name for name in KNOWN}
    for name in given:
        if name not in known:
            raise OptionError(f"writing has no option {shown(name)}; {hint(name, sorted(KNOWN))}")
    for name in ("rejectsPath", "summaryPath"):
        value = given.get(name.lower(), "")
        if "://" in value:
            raise refused(name, value, "is an address; give a path of a disk, or of a mount")
    bad_rows = _one_of(given, "badRows", BAD_ROWS)
    settings = SinkSettings(
        _endpoint(given),
        queue=checks.queue_name(given["queue"]) if "queue" in given else None,
        name=checks.job_name(given["name"]) if "name" in given else None,
        data_format=_one_of(given, "dataFormat", FORMATS),
        batch_size=_whole(given, "batchSize", 1000, MAX_BATCH),
        in_flight=_whole(given, "inFlight", 2, MAX_IN_FLIGHT),
        rate=_rate(given),
        skip_bad_rows=bad_rows == "skip",
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
    timeout = _whole(given, "timeout", TIMEOUT_MS, 86_400_000)
    connection = ConnectionOptions(
        pool_size=MAX_IN_FLIGHT, command_timeout=timeout, refused_timeout=min(timeout, REFUSED_MS)
    )
    return endpoint(
        given.get("host"), given.get("port"), given.get("token"), url=given.get("url"), connection=connection
    )


def _one_of(given: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    """One of these words. The first unless it is given."""
    value = given.get(name.lower(), known[0])
    if value.lower() not in known:
        raise refused(name, value, f"is not allowed; give one of {', '.join(known)}")
    return value.lower()


def _whole(given: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= most:
        raise refused(name, text, f"is not allowed; give a whole number from 1 to {most}")
    return value


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
